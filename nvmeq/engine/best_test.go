package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// What works is taken, the best of it, and works.
func TestOpenBest(t *testing.T) {
	for _, compare := range []bool{true, false} {
		for _, l := range []engine.Candidates{
			{Doorbells: []engine.DoorbellRoute{engine.DoorbellDirect, engine.DoorbellBAR}, Modes: []controller.MemoryMode{11, 8, 0}},
			{Doorbells: []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellBridge}, Modes: []controller.MemoryMode{0}},
			{Doorbells: []engine.DoorbellRoute{engine.DoorbellBridge}, Modes: []controller.MemoryMode{9, 0}},
			{Doorbells: []engine.DoorbellRoute{engine.DoorbellAuto}, Modes: []controller.MemoryMode{0}},
		} {
			b, cfg, _ := testrig.Intercept(t, softctl.Options{})
			cfg.Timeout = 0
			if !compare {
				withoutCompare(b)
			}
			if l.Doorbells[0] == engine.DoorbellDirect && !slices.Contains(cfg.Runtime.Facts().Imports, gpu.ExportMemFD) {
				continue
			}
			c, choice, err := engine.OpenBest(cfg, l, engine.Config{Timeout: time.Minute, Team: testrig.Team(t)}, 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			require.Equal(t, engine.Choice{Doorbell: l.Doorbells[0], Mode: l.Modes[0]}, choice)
			e, err := engine.New(c, engine.Config{Lanes: 2, Doorbell: choice.Doorbell, Team: testrig.Team(t)})
			require.NoError(t, err)
			require.Equal(t, uint16(1), e.Stats()[0].QID, "the proof has given its queue pair back")
			r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: b.Controller, Block: 512}}
			t.Run(fmt.Sprint(l), r.roundTrip)
		}
	}
}

// withoutCompare is a controller that does not say that it has the Compare command (ONCS bit 0).
func withoutCompare(b *testrig.Intercepted) { b.OnAdminData = func(d []byte) { d[520] &^= 1 } }

// wrongMemory is a runtime that gives other memory than it was asked for.
type wrongMemory struct {
	gpu.Runtime
	alloc func(gpu.MemKind, int64) (gpu.Memory, error)
	bar   gpu.Memory // what kernels get for a BAR; nil: the BAR
}

func (l *wrongMemory) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	if l.alloc != nil && kind.Device() {
		return l.alloc(kind, n)
	}
	return l.Runtime.Alloc(kind, n)
}

func (l *wrongMemory) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	m, err := l.Runtime.Register(b, as)
	if err == nil && l.bar != nil {
		m = &aliased{m, l.bar}
	}
	return m, err
}

// aliased is memory that kernels find at the address of other memory: they see other bytes than the CPU.
type aliased struct {
	gpu.Memory
	kernels gpu.Memory
}

func (e *aliased) Addr() gpu.Addr { return e.kernels.Addr() }

// misdirected is a Transport whose DMA into device memory goes to host memory instead, as when a driver moves a buffer there.
type misdirected struct {
	*testrig.Intercepted
	rt   gpu.Runtime
	lost []gpu.Memory
}

func (a *misdirected) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if !m.Kind().Device() {
		return a.Intercepted.Map(m, off, n)
	}
	shadow, err := a.rt.Alloc(gpu.HostMapped, m.Size())
	if err != nil {
		return 0, err
	}
	a.lost = append(a.lost, shadow)
	return a.Intercepted.Map(shadow, off, n)
}

// caching is a device whose kernels read through a cache that does not hear of what others write. Its own writes it knows.
type caching struct {
	gpu.Runtime
	cache gpu.Memory
	full  bool
}

func (c *caching) NewStream() (gpu.Stream, error) {
	s, err := c.Runtime.NewStream()
	return &cachingStream{s, c}, err
}

type cachingStream struct {
	gpu.Stream
	c *caching
}

func (s *cachingStream) Fill(dst gpu.Addr, v byte, n int64) error {
	s.c.full = false
	return s.Stream.Fill(dst, v, n)
}

func (s *cachingStream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	if f.Name() == kernels.CheckPatternKernel {
		if !s.c.full {
			if err := s.Stream.Copy(s.c.cache.Addr(), gpu.Addr(args[0]), int64(args[1]*8)); err != nil {
				return err
			}
			s.c.full = true
		}
		args = append([]uint64{uint64(s.c.cache.Addr())}, args[1:]...)
	}
	return s.Stream.Launch(f, grid, block, args...)
}

// TestOpenBestRefuses: memory that is not where the placement says is found by its bytes, and the error names it. OpenBest chooses the
// next candidate, which works.
func TestOpenBestRefuses(t *testing.T) {
	var a *misdirected
	misdirect := func(t *testing.T, cfg *controller.Config) {
		a = &misdirected{Intercepted: cfg.Transport.(*testrig.Intercepted), rt: cfg.Runtime}
		cfg.Transport = a
		t.Cleanup(func() {
			for _, m := range a.lost {
				require.NoError(t, m.Close())
			}
		})
	}
	for _, tc := range []struct {
		name  string
		mode  controller.MemoryMode
		route engine.DoorbellRoute // that is refused; 0: the mode is
		setup func(t *testing.T, cfg *controller.Config)
		want  string
		short bool // ends by a timeout
	}{
		{name: "the runtime gives host memory", mode: 8, want: "memory mode 8: .* was asked for device-fine memory and gave host-mapped memory",
			setup: func(_ *testing.T, cfg *controller.Config) {
				rt := cfg.Runtime
				cfg.Runtime = &wrongMemory{Runtime: rt, alloc: func(_ gpu.MemKind, n int64) (gpu.Memory, error) { return rt.Alloc(gpu.HostMapped, n) }}
			}},
		{name: "the controller reads host memory", mode: 8, setup: misdirect,
			want: "data in device-fine memory of .*: the controller reads other bytes from it than the device has there: its DMA leads elsewhere, to host memory"},
		{name: "the controller writes host memory", mode: 8, want: "data in device-fine memory of .*: commands succeed, and yet the device does not see the bytes in its memory",
			setup: func(t *testing.T, cfg *controller.Config) {
				withoutCompare(cfg.Transport.(*testrig.Intercepted))
				misdirect(t, cfg)
			}},
		{name: "the controller reads what never was there", mode: 8, want: "data in device-fine memory of .*: the controller reads other bytes from it than the device has there",
			setup: func(_ *testing.T, cfg *controller.Config) {
				compare, rules := uint8(nvme.IOCompare), &softctl.Rules{}
				rules.Add(softctl.Rule{Opcode: &compare, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusCompareFailure)}})
				cfg.Transport.(*testrig.Intercepted).SetInjector(rules)
			}},
		{name: "the submission queue is in host memory", mode: 1, setup: misdirect, want: "memory mode 1: ", short: true},
		{name: "the completion queue is in host memory", mode: 2, setup: misdirect, want: "memory mode 2: reading block 0 into host memory: .*timed out", short: true},
		{name: "the CPU sees host memory", mode: 8, want: "data in device-fine memory of .*: the CPU sees other bytes in it than the device: one of them has other memory",
			setup: func(t *testing.T, cfg *controller.Config) {
				rt := cfg.Runtime
				cfg.Runtime = &wrongMemory{Runtime: rt, alloc: func(kind gpu.MemKind, n int64) (gpu.Memory, error) {
					m, err := rt.Alloc(kind, n)
					if err != nil {
						return nil, err
					}
					other, err := rt.Alloc(kind, n)
					t.Cleanup(func() { require.NoError(t, other.Close()) })
					return &aliased{m, other}, err
				}}
			}},
		{name: "kernels see a stale cache", mode: 8, want: "data in device-fine memory of .*: a kernel does not see what the controller wrote, while the copy engine does",
			setup: func(t *testing.T, cfg *controller.Config) {
				cache, err := cfg.Runtime.Alloc(gpu.HostMapped, 4096)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cache.Close()) })
				cfg.Runtime = &caching{Runtime: cfg.Runtime, cache: cache}
			}},
		{name: "doorbells go elsewhere", route: engine.DoorbellBAR, want: "doorbells by iomem: reading block 0 into host memory: .*timed out", short: true,
			setup: func(t *testing.T, cfg *controller.Config) {
				other, err := cfg.Runtime.Alloc(gpu.HostMapped, 64<<10)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				cfg.Runtime = &wrongMemory{Runtime: cfg.Runtime, bar: other}
			}},
		{name: "no descriptor of the BAR", route: engine.DoorbellDirect, want: "doorbells by direct: .*BAR 0 cannot be had as a descriptor",
			setup: func(_ *testing.T, cfg *controller.Config) {
				cfg.Transport = struct {
					controller.Transport
					controller.Stepper
				}{cfg.Transport, cfg.Transport.(*testrig.Intercepted)}
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, cfg, _ := testrig.Intercept(t, softctl.Options{})
			if tc.mode == 8 && tc.name == "the CPU sees host memory" && !cfg.Runtime.Facts().LargeBAR {
				t.Skip("the CPU does not address this device's memory")
			}
			cfg.Timeout = 0
			tc.setup(t, &cfg)
			l := engine.Candidates{Doorbells: []engine.DoorbellRoute{engine.DoorbellBridge}, Modes: []controller.MemoryMode{tc.mode, 0}}
			if tc.route != 0 {
				l = engine.Candidates{Doorbells: []engine.DoorbellRoute{tc.route, engine.DoorbellBridge}, Modes: []controller.MemoryMode{0}}
			}
			ec := engine.Config{Timeout: time.Minute, Team: testrig.Team(t)}
			if tc.short {
				ec.Timeout, ec.AbortWait = 200*time.Millisecond, 200*time.Millisecond
			}
			c, choice, err := engine.OpenBest(cfg, l, ec, 1)
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			require.Equal(t, controller.MemoryMode(0), choice.Mode)
			require.Equal(t, engine.DoorbellBridge, choice.Doorbell)
			require.Len(t, choice.Refused, 1)
			require.Regexp(t, tc.want, choice.Refused[0])
			e, err := engine.New(c, engine.Config{Lanes: 1, Doorbell: choice.Doorbell, Team: testrig.Team(t)})
			require.NoError(t, err)
			r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: b.Controller, Block: 512}}
			r.roundTrip(t)
		})
	}
}

// TestOpenBestOnce: rungs that are refused, and leave nothing behind, do not have the controller shut down and opened again.
func TestOpenBestOnce(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	rt := cfg.Runtime
	cfg.Timeout = 0
	cfg.Runtime = &wrongMemory{Runtime: rt, alloc: func(_ gpu.MemKind, n int64) (gpu.Memory, error) { return rt.Alloc(gpu.HostMapped, n) }}
	l := engine.Candidates{Doorbells: []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellBridge}, Modes: []controller.MemoryMode{11, 1, 0}}
	c, choice, err := engine.OpenBest(cfg, l, engine.Config{Timeout: time.Minute, Team: testrig.Team(t)}, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.Equal(t, controller.MemoryMode(0), choice.Mode)
	require.Equal(t, engine.DoorbellBAR, choice.Doorbell)
	require.Len(t, choice.Refused, 2)
	enabled := 0
	for _, cc := range b.CCs {
		if cc.EN() && cc.SHN() == nvme.SHNNone {
			enabled++
		}
	}
	require.Equal(t, 1, enabled)
	e, err := engine.New(c, engine.Config{Lanes: 2, Doorbell: choice.Doorbell, Team: testrig.Team(t)})
	require.NoError(t, err)
	require.ErrorContains(t, c.Place(controller.Placement{}), "cannot be placed elsewhere")
	require.Equal(t, uint16(1), e.Stats()[0].QID)
	r := &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Controller: c, Engine: e, Soft: b.Controller, Block: 512}}
	r.roundTrip(t)
}
