package engine_test

import (
	"bytes"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// leaver is a device that is taken away: its registers read as all ones then. Its BAR is there for whoever gets the device next.
type leaver struct {
	*softctl.Controller
	gone  atomic.Bool
	leave func() error
	admin []byte // the admin submission queue
	// leaves, if it is not 0, has the device taken away while the CPU rings for the creation of the submission queue of that number.
	leaves atomic.Uint32
	left   error
}

func (l *leaver) OnLeave(f func() error) { l.leave = f }

func (l *leaver) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if l.admin == nil {
		l.admin = m.Host() // it is mapped first
	}
	return l.Controller.Map(m, off, n)
}

func (l *leaver) Read32(off int64) uint32 {
	if l.gone.Load() {
		return ^uint32(0)
	}
	return l.Controller.Read32(off)
}

func (l *leaver) Write32(off int64, v uint32) {
	if at := l.leaves.Load(); off == 0x1000 && v > 0 && at != 0 {
		e, err := nvme.DecodeSQE(l.admin[(v-1)*nvme.SQESize:][:nvme.SQESize])
		if err == nil && e.Opcode == nvme.AdminCreateSQ && e.CDW10&0xffff == at {
			l.leaves.Store(0)
			l.left = l.leave()
		}
	}
	if !l.gone.Load() {
		l.Controller.Write32(off, v)
	}
}

// Reset finds no device, and the software's doorbells stay as they are.
func (l *leaver) Reset() error { return os.ErrNotExist }

// registrar notes the registrations and imports of BARs.
type registrar struct {
	*detached.Runtime
	open atomic.Int64
}

func (r *registrar) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	m, err := r.Runtime.Register(b, as)
	if err == nil && as == gpu.RegisteredMMIO {
		r.open.Add(1)
		m = registration{m, r}
	}
	return m, err
}

func (r *registrar) Import(e gpu.Export) (gpu.Memory, error) {
	m, err := r.Runtime.Import(e)
	if err == nil {
		r.open.Add(1)
		m = registration{m, r}
	}
	return m, err
}

type registration struct {
	gpu.Memory
	r *registrar
}

func (m registration) Close() error {
	m.r.open.Add(-1)
	return m.Memory.Close()
}

// TestSilence: before a device that is taken away is another driver's, no kernel of the lanes runs that could ring its doorbells, the
// registration or import of its BAR has ended, and that stays so whatever the callers ask for. Kernels that fail what they find may run on.
func TestSilence(t *testing.T) {
	for _, cfg := range []engine.Config{{}, {Batch: true}, {Doorbell: engine.DoorbellDirect}} {
		dev := openDetached(t)
		rt := &registrar{Runtime: dev}
		soft := openServed(t, dev, softctl.Options{})
		l := &leaver{Controller: soft}
		c, err := controller.Open(controller.Config{Runtime: rt, Transport: l, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		cfg.Lanes = 2
		e, err := engine.New(c, cfg)
		require.NoError(t, err)
		require.EqualValues(t, 1, rt.open.Load())
		r := &rig{Rig: &testrig.Rig{Runtime: rt, Controller: c, Engine: e, Soft: soft, Block: 512}}
		data := r.Chunk(t, 64<<10)
		var callers sync.WaitGroup
		var rounds atomic.Int64
		for lane := range 3 {
			callers.Go(func() {
				for {
					cmds := make([]engine.Command, 8)
					for i := range cmds {
						cmds[i] = r.RW(nvme.IORead, uint64(i), data, int64(lane*8+i)*512, 512)
					}
					if e.Do(lane, cmds) != nil {
						return
					}
					rounds.Add(1)
				}
			})
		}
		until(t, "some rounds", func() bool { return rounds.Load() > 20 })
		l.gone.Store(true)
		require.NoError(t, l.leave())
		after := bytes.Clone(soft.BAR()[0x1000:])
		require.Zero(t, rt.open.Load())
		callers.Wait()
		require.Error(t, e.Do(0, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 512)}))
		_, err = c.AcquireBAR()
		require.ErrorContains(t, err, "was taken away")
		_, err = c.RegisterBAR(rt)
		require.ErrorContains(t, err, "was taken away")
		_, err = c.ImportBAR()
		require.ErrorContains(t, err, "was taken away")
		for _, route := range []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect} {
			_, err = engine.New(c, engine.Config{Lanes: 1, Doorbell: route})
			require.Error(t, err)
		}
		require.True(t, bytes.Equal(after, soft.BAR()[0x1000:]), "no doorbell was rung since")
		require.Zero(t, rt.open.Load())
		_ = e.Close() // the device is gone, which it may say
		require.Zero(t, rt.open.Load(), "ended once")
	}
}

// TestSilenceImport: a BAR whose import is under way when the device is taken away is no kernel's afterwards.
func TestSilenceImport(t *testing.T) {
	dev := openDetached(t)
	rt := &lateImport{registrar: &registrar{Runtime: dev}}
	l := &leaver{Controller: openServed(t, dev, softctl.Options{})}
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: l, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	rt.meanwhile = func() {
		l.gone.Store(true)
		require.NoError(t, l.leave())
	}
	_, err = c.ImportBAR()
	require.ErrorContains(t, err, "was taken away")
	require.Zero(t, rt.open.Load())
}

// lateImport is a runtime in whose imports something happens.
type lateImport struct {
	*registrar
	meanwhile func()
}

func (r *lateImport) Import(e gpu.Export) (gpu.Memory, error) {
	m, err := r.registrar.Import(e)
	r.meanwhile()
	return m, err
}

// TestSilenceMeanwhile: a device is taken away while queue pairs are created, after a reset or for a new engine. Lanes that are told to run
// afterwards ring no doorbell either.
func TestSilenceMeanwhile(t *testing.T) {
	for _, reset := range []bool{true, false} {
		dev := openDetached(t)
		soft := openServed(t, dev, softctl.Options{})
		l := &leaver{Controller: soft}
		c, err := controller.Open(controller.Config{Runtime: dev, Transport: l, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		if !reset {
			l.leaves.Store(1)
		}
		e, err := engine.New(c, engine.Config{Lanes: 2})
		require.NoError(t, err)
		r := &rig{Rig: &testrig.Rig{Runtime: dev, Controller: c, Engine: e, Soft: soft, Block: 512}}
		data := r.Chunk(t, 4096)
		if reset {
			l.leaves.Store(1)
			require.NoError(t, c.Reset())
		}
		require.Zero(t, l.leaves.Load())
		require.NoError(t, l.left)
		l.gone.Store(true)
		after := bytes.Clone(soft.BAR()[0x1000:])
		require.Error(t, e.Do(1, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 512)}))
		require.True(t, bytes.Equal(after, soft.BAR()[0x1000:]), "no doorbell was rung since")
	}
}

// TestSilencePeer: the registrations with further GPUs, and with the CPU for lanes beside them, end with the first one's.
func TestSilencePeer(t *testing.T) {
	var devs [2]*registrar
	for i := range devs {
		dev := openDetached(t)
		devs[i] = &registrar{Runtime: dev}
	}
	cpu := openHost(t)
	soft := openServed(t, devs[0], softctl.Options{})
	l := &leaver{Controller: soft}
	c, err := controller.Open(controller.Config{Runtime: devs[0], Transport: l, Timeout: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	e, err := engine.New(c, engine.Config{Lanes: 2, CPULanes: 1, CPU: cpu, More: []gpu.Runtime{devs[1]}})
	require.NoError(t, err)
	require.EqualValues(t, 1, devs[1].open.Load())
	l.gone.Store(true)
	require.NoError(t, l.leave())
	require.Zero(t, devs[0].open.Load())
	require.Zero(t, devs[1].open.Load())
	_ = e.Close() // the device is gone, which it may say
	require.Zero(t, devs[0].open.Load(), "ended once")
	require.Zero(t, devs[1].open.Load(), "ended once")
	c.Close()
}

// A lane that does not answer may ring later: the device is kept from others. After a failover from kernels that have ended it is not.
func TestSilenceImpossible(t *testing.T) {
	for name, fail := range failures {
		for _, route := range []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect} {
			t.Run(name+" "+route.String(), func(t *testing.T) { silenceAfterFailover(t, fail, route, name == "hangs") })
		}
	}
}

func silenceAfterFailover(t *testing.T, fail func(*detached.Runtime), route engine.DoorbellRoute, hangs bool) {
	var l *leaver
	f := newFailingOn(t, true, false, softctl.Options{}, engine.Config{Lanes: 1, Doorbell: route}, func(t controller.Transport) controller.Transport {
		l = &leaver{Controller: t.(*reach).Controller}
		return struct {
			*reach
			controller.Leaver
		}{t.(*reach), l}
	})
	c := f.Chunk(t, 4096)
	fail(f.dev)
	until(t, "the lanes move", func() bool {
		require.NoError(t, f.Engine.Do(0, []engine.Command{f.RW(nvme.IORead, 0, c, 0, 4096)}), "on the spare at last")
		return f.Controller.Failover() != nil
	})
	if hangs {
		require.ErrorContains(t, l.leave(), "a kernel that hangs on the runtime that failed has the doorbells")
	} else {
		require.NoError(t, l.leave())
	}
	require.NoError(t, f.Engine.Close())
}

// A further GPU that hangs has the doorbells, whatever the first has.
func TestSilenceImpossiblePeer(t *testing.T) {
	var devs [2]*detached.Runtime
	for i := range devs {
		dev, err := detached.New(true)
		require.NoError(t, err)
		t.Cleanup(dev.Resume)
		devs[i] = dev
	}
	peer := &registrar{Runtime: devs[1]}
	soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Queues: 16, Threads: 1, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	l := &leaver{Controller: soft}
	c, err := controller.Open(controller.Config{Runtime: barless{devs[0]}, Transport: l, Log: slog.New(slog.DiscardHandler),
		Spare: func() (gpu.Runtime, error) { return host.Open(host.Options{}) }})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	e, err := engine.New(c, engine.Config{Lanes: 2, More: []gpu.Runtime{peer}, HangTimeout: time.Second})
	require.NoError(t, err)
	route, _ := e.Doorbells()
	require.Equal(t, engine.DoorbellBridge, route)
	require.EqualValues(t, 1, peer.open.Load())
	r := &rig{Rig: &testrig.Rig{Runtime: devs[0], Controller: c, Engine: e, Soft: soft, Block: 512, Threads: true}}
	data := r.Chunk(t, 4096)
	for _, dev := range devs {
		dev.Hang()
	}
	require.NoError(t, e.Do(0, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 4096)}), "on the spare")
	require.ErrorContains(t, l.leave(), "a kernel that hangs on the runtime that failed has the doorbells")
}
