package engine_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestHungCopyEnds: copies whose call of the driver does not return fail, each command once, and what waits for them goes on meanwhile: a reset, a failover, unmapping, the end.
// When the calls return later nothing changes.
func TestHungCopyEnds(t *testing.T) {
	const size, callers = 4096, 16
	for _, waits := range []string{"reset", "failover", "unmap", "close"} {
		t.Run(waits, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			rt := openHost(t)
			dev, err := detached.New(false)
			require.NoError(t, err)
			d := &stuckDriver{Runtime: dev}
			t.Cleanup(d.LetGo)
			copies, err := copyengine.New(d)
			require.NoError(t, err)
			f := newFailing(t, true, false, softctl.Options{Queues: 32, Mover: copies},
				engine.Config{Lanes: 2, CPULanes: 8, CPU: rt, HostOnCPU: true, HangTimeout: time.Minute, LateAfter: time.Minute})
			f.Soft.SetInjector(nil) // else nothing is lone
			mem, err := dev.Alloc(gpu.DevicePlain, size)
			require.NoError(t, err)
			borrowed, err := f.Controller.Borrow(placed{mem, gpu.Reach{Owner: gpu.OwnerDevice, Device: "0000:01:00.0"}})
			require.NoError(t, err)
			read, write := f.RW(nvme.IORead, 0, borrowed, 0, size), f.RW(nvme.IOWrite, 8, borrowed, 0, size)
			for _, cmd := range []engine.Command{read, write, read} {
				require.NoError(t, f.Engine.Do(engine.AnyLane, []engine.Command{cmd}))
			}
			rounds, stop := f.write(t)
			until(t, "some rounds", func() bool { return rounds.Load() > 20 })
			if waits == "close" { // whose callers have errors
				stop()
			}

			d.Stick("copy", "launch", "reset") // several small copies at once are a launch, the first stream's a reset here
			var device sync.WaitGroup
			var failed atomic.Int64
			for i := range callers {
				device.Go(func() {
					if i%4 == 0 && f.Engine.Lone(lone(nvme.IORead, 0, size, borrowed.IOVA())) {
						t.Error("a copy that hangs has succeeded")
					}
					cmds := []engine.Command{read, write}
					err := f.Engine.Do(engine.AnyLane, cmds)
					late := waits == "close" && errors.Is(err, engine.ErrClosed) // it came after the end, which sends nothing
					if late || err != nil && cmds[0].Err != nil && cmds[1].Err != nil {
						failed.Add(1)
					} else {
						t.Logf("caller %d: %v; the read: %v; the write: %v", i, err, cmds[0].Err, cmds[1].Err)
					}
				})
			}
			until(t, "a copy hangs", func() bool { return d.Stuck() > 0 })
			before := rounds.Load()
			ended := make(chan error, 1)
			go func() {
				switch waits {
				case "reset":
					ended <- f.Controller.Reset()
				case "failover":
					f.Controller.Recover(f.Controller.Generation(), controller.RuntimeError{Err: errors.New("for the test")})
					ended <- f.Controller.Err()
				case "unmap":
					err := borrowed.Close()
					if !errors.Is(err, copyengine.ErrStuck) {
						t.Errorf("the memory may be used yet, and its owner is told: %v", err)
					}
					ended <- nil
				case "close":
					ended <- f.Engine.Close()
				}
			}()
			over := make(chan bool)
			go func() {
				device.Wait()
				close(over)
			}()
			select {
			case <-over:
			case <-time.After(time.Minute):
				t.Fatal("commands whose copies hang do not end")
			}
			require.EqualValues(t, callers, failed.Load(), "each caller has an error")
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
			require.Positive(t, d.Stuck(), "it hangs yet")
			if waits != "unmap" {
				require.ErrorIs(t, borrowed.Close(), copyengine.ErrStuck, "the memory may be used yet, and its owner is told")
			}
			require.NotZero(t, copies.Left())
			if waits == "close" {
				return
			}
			require.Equal(t, waits == "failover", f.Controller.Failover() != nil)
			until(t, "more rounds", func() bool { return rounds.Load() > before+20 })
			d.LetGo()
			until(t, "the calls return", func() bool { return d.Stuck() == 0 })
			after := rounds.Load()
			until(t, "more rounds", func() bool { return rounds.Load() > after+20 })
			stop()
			for _, s := range f.Engine.Stats() {
				require.Zero(t, s.Spurious, "lane %d", s.Lane)
			}
			require.NoError(t, f.Engine.Close())
		})
	}
}
