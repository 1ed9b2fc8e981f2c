package softctl

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// lone carries out a lone command of n blocks of 512 bytes.
func (h *host) lone(op uint8, slba uint64, n uint64, at uint64) bool {
	return h.c.Lone(1, nvme.Opcode(op), 1, slba, n, nvme.IOVA(at))
}

// TestLone: lone reads and writes of a block device agree with a model, and are counted.
func TestLone(t *testing.T) {
	dev, file := newLoop(t, testSize)
	h := newHostOn(t, dev, Options{}).enable()
	require.True(t, h.c.Lones())
	h.queue(1, 16)
	r := rand.New(rand.NewPCG(3, 4))
	want := make([]byte, testSize)
	const room = 256 << 10
	b, at := h.alloc(room)
	var reads, writes, moved uint64
	for range 300 {
		n := 1 + r.Uint64N(room/512)
		lba := r.Uint64N(testSize/512 - n)
		place := want[lba*512:][:n*512]
		if moved += n * 512; r.IntN(2) == 0 {
			random(r.Uint64(), b[:n*512])
			copy(place, b)
			require.True(t, h.lone(opWrite, lba, n, at))
			writes++
		} else {
			clear(b)
			require.True(t, h.lone(opRead, lba, n, at))
			require.True(t, bytes.Equal(place, b[:n*512]))
			reads++
		}
	}
	q := h.c.Counters()[1]
	require.Equal(t, map[uint8]uint64{opRead: reads, opWrite: writes}, q.ByOpcode)
	require.Equal(t, moved, q.BytesRead+q.BytesWritten)
	require.Equal(t, reads+writes, q.Commands)
	require.Zero(t, q.Completions)
	require.Zero(t, q.SQDoorbells)
	require.NoError(t, h.c.Close())
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// TestLoneRefuses: what a command of the queue is needed for is left to that, and has no effect.
func TestLoneRefuses(t *testing.T) {
	dev, file := newLoop(t, testSize)
	h := newHostOn(t, dev, Options{}).enable()
	b, at := h.alloc(2 << 20)
	require.False(t, h.lone(opRead, 0, 8, at), "no queue")
	q := h.queue(1, 16)
	require.True(t, h.lone(opRead, 0, 8, at))
	refused := func(op uint8, slba, n, at uint64, why string) {
		t.Helper()
		random(1, b[:4096])
		was := bytes.Clone(b[:4096])
		require.False(t, h.lone(op, slba, n, at), why)
		require.Equal(t, was, b[:4096], why)
	}
	refused(opRead, testSize/512-7, 8, at, "beyond the end")
	refused(opRead, 1<<63, 8, at, "far beyond the end")
	refused(opRead, 0, 4096, at, "longer than MDTS")
	refused(opRead, 0, 8, 4096, "no such memory")
	refused(opRead, 0, 8, h.base+uint64(len(h.mem.b))-512, "memory that ends")
	refused(opRead, 0, 8, at+4, "memory that the device does not take")
	require.False(t, h.c.Lone(1, nvme.IORead, 2, 0, 8, nvme.IOVA(at)), "no such namespace")
	require.False(t, h.c.Lone(0, nvme.IORead, 1, 0, 8, nvme.IOVA(at)), "the admin queue")
	require.False(t, h.c.Lone(uint16(len(h.c.sq)), nvme.IORead, 1, 0, 8, nvme.IOVA(at)), "no such queue")
	require.True(t, h.lone(opRead, 0, uint64(h.c.opt.MaxTransfer)/512, at), "as long as MDTS")

	hidden := newMemory(t, 4096)
	hidden.hidden = true
	h.c.dma.mover = piped{}
	a, err := h.c.Map(hidden, 0, 4096)
	require.NoError(t, err)
	refused(opRead, 0, 8, uint64(a), "memory that the CPU cannot address")

	rules := &Rules{}
	h.c.SetInjector(rules)
	refused(opRead, 0, 8, at, "an injector decides")
	h.c.SetInjector(nil)

	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0)) // Set Features: no volatile write cache
	refused(opWrite, 0, 8, at, "a write that is durable")
	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 1))
	require.True(t, h.lone(opWrite, 0, 8, at))

	h.c.sq[1].Load().mu.Lock()
	refused(opRead, 0, 8, at, "the queue is in use")
	h.c.sq[1].Load().mu.Unlock()

	require.NoError(t, os.Truncate(file, 4<<20))
	require.False(t, h.lone(opRead, testSize/512-8, 8, at), "the device answers EIO")
	require.Equal(t, unrecoveredRead, h.do(q, rw(opRead, 1, testSize/512-8, 8).prp(at, 0)).status()&^statusMore)

	h.c.fail("as if")
	refused(opRead, 0, 8, at, "fatal")
	require.NoError(t, h.c.Reset())
	refused(opRead, 0, 8, at, "reset")
	require.NoError(t, h.c.Close())

	require.NoError(t, os.Truncate(file, testSize))
	second, _ := newLoop(t, testSize)
	for _, opt := range []Options{{Latency: time.Millisecond}, {OutOfOrder: true}, {Recorder: media.NewRecorder()}, {Images: []string{second}}} {
		c, err := Open(dev, opt)
		require.NoError(t, err)
		require.False(t, c.Lones())
		require.NoError(t, c.Close())
	}
	c, err := Open(newImage(t, testSize), Options{})
	require.NoError(t, err)
	require.False(t, c.Lones(), "an image file")
	require.NoError(t, c.Close())

	ro := newHostOn(t, dev, Options{ReadOnly: true}).enable()
	ro.queue(1, 16)
	_, at = ro.alloc(4096)
	require.True(t, ro.lone(opRead, 0, 8, at))
	require.False(t, ro.lone(opWrite, 0, 8, at), "opened for reading")
	require.NoError(t, ro.c.Close())
}

// TestLoneStops: unmapping, and resets, wait for lone commands: after them no memory changes.
func TestLoneStops(t *testing.T) {
	dev, file := newLoop(t, testSize)
	require.NoError(t, os.WriteFile(file, random(5, make([]byte, testSize)), 0))
	h := newHostOn(t, dev, Options{}).enable()
	m := newMemory(t, 1<<20)
	for round := range 20 {
		h.used = 2 << 20
		h.queue(1, 16)
		a, err := h.c.Map(m, 0, m.Size())
		require.NoError(t, err)
		stop := make(chan struct{})
		begun := make(chan struct{}, 1)
		var all sync.WaitGroup
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if h.lone(opRead, 0, 1024, uint64(a)) {
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			}
		})
		<-begun
		if round%2 == 0 {
			require.NoError(t, h.c.Unmap(a))
		} else {
			require.NoError(t, h.c.Reset())
		}
		clear(m.b)
		time.Sleep(time.Millisecond)
		require.Equal(t, make([]byte, len(m.b)), m.b)
		close(stop)
		all.Wait()
		if round%2 == 0 {
			require.NoError(t, h.c.Reset())
		} else {
			require.NoError(t, h.c.Unmap(a))
		}
		h.enable()
	}
	require.NoError(t, h.c.Close())
}
