package engine_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// notSticky is a controller like an NVMe drive: it is no StickyFlush.
type notSticky struct {
	controller.Transport
	controller.Stepper
}

func asDrive(t controller.Transport) controller.Transport {
	return notSticky{t, t.(controller.Stepper)}
}

func asItIs(t controller.Transport) controller.Transport { return t }

// durableRig is newRig over what the transport is made into.
func durableRig(t *testing.T, so softctl.Options, ec engine.Config, over func(controller.Transport) controller.Transport) *rig {
	t.Helper()
	r := &rig{Rig: &testrig.Rig{Log: &testrig.LogBuffer{}, Rules: &softctl.Rules{}, Block: 512, Runtime: testrig.OpenRuntime(t)}}
	t.Cleanup(func() { require.NoError(t, r.Runtime.Close()) }) // after what is testrig.Served with it
	so.Injector, so.Log = r.Rules, slog.New(slog.DiscardHandler)
	var err error
	r.Soft, err = softctl.Open(testrig.NewImage(t), testrig.Served(t, r.Runtime, so))
	require.NoError(t, err)
	r.Controller, err = controller.Open(controller.Config{Runtime: r.Runtime, Transport: over(r.Soft), Log: slog.New(slog.NewTextHandler(r.Log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Controller.Close()
		require.NoError(t, r.Soft.Close())
	})
	ec.Team = testrig.Team(t)
	r.Engine, err = engine.New(r.Controller, ec)
	require.NoError(t, err)
	return r
}

func (r *rig) flush(lane int) error {
	return r.Engine.Do(lane, []engine.Command{{Op: nvme.IOFlush, NSID: 1}})
}

func (r *rig) fua(c *controller.Chunk) error {
	w := r.RW(nvme.IOWrite, 0, c, 0, 4096)
	w.FUA = true
	return r.Engine.Do(engine.AnyLane, []engine.Command{w})
}

// nothingDurable checks the state after a failed Flush: commands succeed, but Flush and FUA fail all the same.
func (r *rig) nothingDurable(t *testing.T, lanes int) {
	t.Helper()
	c := r.Chunk(t, 4096)
	for lane := range lanes {
		require.ErrorIs(t, r.flush(lane), engine.ErrNotDurable)
	}
	require.ErrorIs(t, r.fua(c), engine.ErrNotDurable)
	require.NoError(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IOWrite, 0, c, 0, 4096)}))
	require.NoError(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IORead, 0, c, 0, 4096)}))
	require.Error(t, r.Controller.NotDurable())
	require.Equal(t, 1, r.Log.Count("a Flush failed"))
}

// TestFailedFlushIsNotRepeated: whatever the status.
func TestFailedFlushIsNotRepeated(t *testing.T) {
	for _, st := range []nvme.Status{nvme.StatusWriteFault, nvme.StatusInterrupted, nvme.StatusInternal, nvme.StatusAbortRequested,
		nvme.StatusNSNotReady, nvme.StatusTransientTransport, nvme.NewStatus(nvme.SCTPath, 0, false)} {
		t.Run(st.String(), func(t *testing.T) {
			r := durableRig(t, softctl.Options{}, engine.Config{Lanes: 2}, asDrive)
			op := uint8(nvme.IOFlush)
			r.Rules.Add(softctl.Rule{Opcode: &op, Times: 1, Do: softctl.Verdict{Status: softctl.Status(st)}})
			var s *nvme.StatusError
			require.ErrorAs(t, r.flush(0), &s)
			require.True(t, s.Status.Is(st))
			require.EqualValues(t, 1, r.Engine.Stats()[0].Commands, "sent again")
			r.nothingDurable(t, 2)
			require.NoError(t, r.Controller.Reset())
			r.nothingDurable(t, 2)
		})
	}
}

// TestFailedFUAIsNotRepeated: nor is a write with FUA; one without is, since success says no more the second time than the first.
func TestFailedFUAIsNotRepeated(t *testing.T) {
	r := durableRig(t, softctl.Options{}, engine.Config{Lanes: 1}, asDrive)
	c := r.Chunk(t, 4096)
	for _, op := range []uint8{uint8(nvme.IOWrite), uint8(nvme.IOWriteZeroes)} {
		for _, fua := range []bool{true, false} {
			w := r.RW(nvme.Opcode(op), 0, c, 0, 4096)
			if w.FUA = fua; w.Op == nvme.IOWriteZeroes {
				w.Data, w.Len = 0, 0
			}
			r.Rules.Clear()
			r.Rules.Add(softctl.Rule{Opcode: &op, Times: 1, Do: softctl.Verdict{Status: softctl.WriteFault}})
			before := r.Engine.Stats()[0].Commands
			err := r.Engine.Do(0, []engine.Command{w})
			sent := r.Engine.Stats()[0].Commands - before
			if fua {
				require.Error(t, err)
				require.EqualValues(t, 1, sent)
			} else {
				require.NoError(t, err)
				require.EqualValues(t, 2, sent)
			}
		}
	}
	require.NoError(t, r.flush(0), "the failure of a write with FUA concerns only that write")
}

// unplugged is a drive that has had an unsafe shutdown, by its SMART log, as soon as lost is set.
type unplugged struct {
	notSticky
	admin []byte // submission queue, completion queue, data
	tail  uint32
	lost  bool
}

func (u *unplugged) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if u.admin == nil {
		u.admin = m.Host() // the admin queue is mapped first
	}
	return u.notSticky.Map(m, off, n)
}

func (u *unplugged) Write32(off int64, v uint32) {
	switch off {
	case nvme.RegDBS: // a command was posted
		u.tail = v
	case nvme.RegDBS + 4: // and has completed
		sqe := u.admin[(u.tail+63)%64*nvme.SQESize:]
		if u.lost && nvme.Opcode(sqe[0]) == nvme.AdminGetLogPage && nvme.LID(sqe[40]) == nvme.LIDSMART {
			u.admin[8192+144]++ // unsafe shutdowns (Base §5.16.1.3)
		}
	}
	u.notSticky.Write32(off, v)
}

// TestPowerLoss: the controller comes back from a reset and has been without power. What it had not flushed is gone.
func TestPowerLoss(t *testing.T) {
	u := &unplugged{}
	r := durableRig(t, softctl.Options{}, engine.Config{Lanes: 2}, func(t controller.Transport) controller.Transport {
		u.notSticky = notSticky{t, t.(controller.Stepper)}
		return u
	})
	require.NoError(t, r.Controller.Reset())
	require.NoError(t, r.flush(0))
	u.lost = true
	require.NoError(t, r.Controller.Reset())
	require.ErrorContains(t, r.flush(0), "the controller lost power")
	r.nothingDurable(t, 2)
}

// TestLostFlush: the result of a Flush is lost. A drive does not get it again; a StickyFlush controller does.
func TestLostFlush(t *testing.T) {
	for name, do := range map[string]softctl.Verdict{"no completion": {Drop: true}, "wrong CID": {XorCID: 0x4000}, "fatal": {Fatal: true}} {
		t.Run(name, func(t *testing.T) {
			for _, remembers := range []bool{true, false} {
				over := asDrive
				if remembers {
					over = asItIs
				}
				r := durableRig(t, softctl.Options{}, fast, over)
				op := uint8(nvme.IOFlush)
				r.Rules.Add(softctl.Rule{Opcode: &op, Times: 1, Do: do})
				err := r.flush(0)
				if remembers {
					require.NoError(t, err)
					require.NoError(t, r.Controller.NotDurable())
					continue
				}
				require.ErrorIs(t, err, engine.ErrNotDurable)
				require.ErrorContains(t, err, "Flush of namespace 1: ")
				require.ErrorContains(t, err, "its result was lost")
				r.nothingDurable(t, 2)
			}
		})
	}
}

// TestFailoverFlush: the GPU fails while the controller has a Flush.
func TestFailoverFlush(t *testing.T) {
	for _, remembers := range []bool{true, false} {
		over := asDrive
		if remembers {
			over = asItIs
		}
		f := newFailingOn(t, true, false, softctl.Options{Latency: 700 * time.Millisecond}, engine.Config{Lanes: 1}, over)
		err := f.hangs(t, func() error { return f.flush(0) })
		require.NotNil(t, f.Controller.Failover())
		if remembers {
			require.NoError(t, err)
			require.NoError(t, f.flush(0))
		} else {
			require.ErrorIs(t, err, engine.ErrNotDurable)
			require.ErrorIs(t, f.flush(0), engine.ErrNotDurable)
		}
		require.NoError(t, f.Engine.Close())
	}
}
