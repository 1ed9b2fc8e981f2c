package softctl

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	cpu "github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// slow is a medium whose flushes begin and do not end before release.
type slow struct {
	media.Medium
	begun chan struct{} // one for each
	open  chan struct{}
	once  sync.Once
}

func (s *slow) Flush() error {
	s.begun <- struct{}{}
	<-s.open
	return s.Medium.Flush()
}

func (s *slow) FlushesAtOnce() bool { return false }

func (s *slow) release() { s.once.Do(func() { close(s.open) }) }

// slowly gives the controller's namespaces such a medium.
func slowly(t *testing.T, c *Controller) *slow {
	s := &slow{Medium: c.ns[0].medium, begun: make(chan struct{}, 100), open: make(chan struct{})}
	for _, ns := range c.ns {
		ns.medium = s
	}
	return s
}

// soon fails the test if nothing comes. It is no measure of speed: what does not come in this time never does.
func soon[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "does not happen", what)
	}
	return v
}

// TestFlushHoldsNothingUp has a flush that does not end, and others behind it, and carries out what comes after.
func TestFlushHoldsNothingUp(t *testing.T) {
	h, q := ready(t, Options{})
	s := slowly(t, h.c)
	t.Cleanup(s.release) // before the controller's Close, which waits for it
	_, at := h.alloc(4096)
	first, second := h.put(q, cmdOf(opFlush, 1)), h.put(q, cmdOf(opFlush, 1))
	h.ring(q)
	h.c.Step(1)
	soon(t, "the flush begins", s.begun)
	for _, r := range []raw{rw(opRead, 1, 0, 8).prp(at, 0), rw(opWrite, 1, 8, 8).prp(at, 0), rw(opVerify, 1, 0, 8)} {
		cid := h.put(q, r)
		h.ring(q)
		h.c.Step(1)
		e, ok := h.poll(q)
		require.True(t, ok, "opcode %#x waits for a flush", uint8(r[0]))
		require.Equal(t, cid, e.cid())
		require.Equal(t, success, e.status())
	}
	require.Empty(t, s.begun, "one flush of a queue at a time")
	s.release()
	for _, want := range []uint16{first, second} {
		e, ok := h.poll(q)
		for end := time.Now().Add(time.Minute); !ok && time.Now().Before(end); e, ok = h.poll(q) {
			h.c.Step(1)
		}
		require.True(t, ok, "no completion of the flush")
		require.Equal(t, want, e.cid())
		require.Equal(t, success, e.status())
	}
}

// counted is a medium that says whether its flushes wait for anything, and counts them.
type counted struct {
	media.Medium
	atOnce  bool
	flushes int
}

func (m *counted) FlushesAtOnce() bool { return m.atOnce }

func (m *counted) Flush() error {
	m.flushes++
	return errFlushed
}

var errFlushed = errors.New("a flush that fails")

// TestFlushAtOnce: where there is no disk below, the caller of Step flushes, and the completion, here of a failure, is there when Step returns.
func TestFlushAtOnce(t *testing.T) {
	h, q := ready(t, Options{})
	m := &counted{Medium: h.c.ns[0].medium, atOnce: true}
	for _, ns := range h.c.ns {
		ns.medium = m
	}
	first, second := h.put(q, cmdOf(opFlush, 1)), h.put(q, cmdOf(opFlush, 1))
	h.ring(q)
	h.c.Step(1)
	require.Equal(t, 2, m.flushes)
	for _, want := range []uint16{first, second} {
		e, ok := h.poll(q)
		require.True(t, ok, "no completion of the flush")
		require.Equal(t, want, e.cid())
		require.Equal(t, WriteFault, e.status()&^statusMore)
	}
}

// TestFlushOfADeletedQueue: the commands of a queue that is deleted are answered, and a flush that still goes on touches
// nothing of it.
func TestFlushOfADeletedQueue(t *testing.T) {
	h, q := ready(t, Options{})
	s := slowly(t, h.c)
	t.Cleanup(s.release) // before the controller's Close, which waits for it
	cid := h.put(q, cmdOf(opFlush, 1))
	h.ring(q)
	h.c.Step(1)
	soon(t, "the flush begins", s.begun)
	h.expect(success, h.admin, cmdOf(0x00, 0).dw(10, 1))
	e, ok := h.peek(q)
	require.True(t, ok, "the flush has no answer")
	require.Equal(t, cid, e.cid())
	require.Equal(t, abortedSQDeletion, e.status()&^statusMore)
	s.release()
	require.NoError(t, h.c.Close()) // waits for it
	_, ok = h.peek(q)
	require.False(t, ok, "two answers to one flush")
}

// TestReadersPassAFlush has an engine's flush wait for its medium, and reads on every lane: on its own as on the others,
// with the caller and with threads working on the queues.
func TestReadersPassAFlush(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		for _, threads := range []int{0, 1} {
			t.Run(fmt.Sprintf("%d lanes, %d threads", lanes, threads), func(t *testing.T) {
				rt, err := cpu.Open(cpu.Options{})
				require.NoError(t, err)
				c, err := Open(newImage(t, testSize), Options{Log: quiet(), Threads: threads})
				require.NoError(t, err)
				ctrl, err := controller.Open(controller.Config{Runtime: rt, Transport: c, Log: quiet()})
				require.NoError(t, err)
				t.Cleanup(func() {
					require.NoError(t, ctrl.Close())
					require.NoError(t, c.Close())
					require.NoError(t, rt.Close())
				})
				s := slowly(t, c) // before there is a queue that a thread serves
				eng, err := engine.New(ctrl, engine.Config{Lanes: lanes})
				require.NoError(t, err)
				data, err := ctrl.AllocData(int64(lanes+1) * 4096)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, data.Close()) })
				t.Cleanup(s.release) // before anything is closed

				flushed := make(chan error, 1)
				go func() { flushed <- eng.Do(engine.AnyLane, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}) }()
				soon(t, "the flush begins", s.begun)
				read := make(chan error, lanes+1)
				for l := engine.AnyLane; l < lanes; l++ {
					go func() {
						read <- eng.Do(l, []engine.Command{{Op: nvme.IORead, NSID: 1, NLB: 8, Len: 4096,
							Data: data.IOVA() + nvme.IOVA(l+1)*4096}})
					}()
				}
				for range lanes + 1 {
					require.NoError(t, soon(t, "a read ends before the flush", read))
				}
				require.Empty(t, flushed)
				s.release()
				require.NoError(t, soon(t, "the flush ends", flushed))
			})
		}
	}
}
