package controller_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// standing is a controller in software whose process stands still, threads and all, as one that was stopped does: once after each write that stops says, until the next look.
type standing struct {
	*testrig.Intercepted
	mu    sync.Mutex // the controller's watch looks, too
	stops func(off int64, v uint32) time.Duration
	next  time.Duration // how long the process will stand still
}

func (s *standing) stop(stops func(off int64, v uint32) time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = stops
}

func (s *standing) Write32(off int64, v uint32) {
	s.mu.Lock()
	if s.stops != nil {
		s.next = s.stops(off, v)
	}
	s.mu.Unlock()
	s.Intercepted.Write32(off, v)
}

func (s *standing) stood() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	time.Sleep(s.next)
	stood := s.next > 0
	s.next = 0
	return stood
}

func (s *standing) Step(sqid uint16) bool { return !s.stood() && s.Intercepted.Step(sqid) }

// TestStoppedProcess: a process that was stopped for longer than the controller may take for a command, or to become ready, does not take it for one that is dead when it goes on.
func TestStoppedProcess(t *testing.T) {
	const command, ready = 100 * time.Millisecond, 500 * time.Millisecond
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	s := &standing{Intercepted: b}
	cfg.Transport, cfg.Timeout = s, command
	b.OnRead64 = func(off int64, v uint64) uint64 {
		if off == nvme.RegCAP {
			v &^= 0xff << 24 // CAP.TO: the shortest
		}
		return v
	}
	var enabled atomic.Bool
	b.OnRead32 = func(off int64, v uint32) uint32 {
		if off == nvme.RegCSTS && s.stood() {
			if v |= 1; enabled.Load() {
				v &^= 1
			}
		}
		return v
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()

	var stops atomic.Int32
	s.stop(func(off int64, _ uint32) time.Duration {
		if off != c.Doorbells().SQ(0) {
			return 0
		}
		stops.Add(1)
		return 2 * command
	})
	_, err = c.SMART()
	require.NoError(t, err)
	require.Positive(t, stops.Load())

	stops.Store(0)
	s.stop(func(off int64, v uint32) time.Duration {
		if off != nvme.RegCC {
			return 0
		}
		enabled.Store(nvme.CC(v).EN())
		stops.Add(1)
		return 2 * ready
	})
	require.NoError(t, c.Reset())
	require.EqualValues(t, 2, stops.Load(), "disabled, and enabled")
	s.stop(nil)
	require.Zero(t, b.Resets)
}
