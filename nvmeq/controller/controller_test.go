package controller_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestBringUpRefuses has everything that must end Open, with its words.
func TestBringUpRefuses(t *testing.T) {
	setCAP := func(clear, set uint64) func(int64, uint64) uint64 {
		return func(off int64, v uint64) uint64 {
			if off == nvme.RegCAP {
				v = v&^clear | set
			}
			return v
		}
	}
	const shortTO = 0xff << 24 // cleared: CAP.TO of 0
	identify := uint8(nvme.AdminIdentify)
	setFeatures := uint8(nvme.AdminSetFeatures)
	for _, tc := range []struct {
		name  string
		so    softctl.Options
		setup func(b *testrig.Intercepted, rules *softctl.Rules)
		want  string
	}{
		{name: "gone", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(0, ^uint64(0)) }, want: "CAP reads all ones: no device answers"},
		{name: "no NVMe", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(^uint64(0), 0) }, want: "this is no NVMe controller"},
		{name: "MQES", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(0xffff, 0) }, want: "queues of 1 entry"},
		{name: "MPS", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(0xff<<48, 2<<48|1<<52) }, want: "CAP.MPSMIN (16384 bytes) is above CAP.MPSMAX (8192)"},
		{name: "pages", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(0xff<<48, 5<<48|5<<52) }, want: "demands host pages of 131072 bytes"},
		{name: "CSS", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnRead64 = setCAP(0xff<<37, 1<<44) }, want: "does not offer the NVM command set"},
		{name: "BAR", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnBAR = func(m []byte) []byte { return m[:0x1000] } }, want: "the admin doorbells end at 4104"},
		{name: "one doorbell", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnBAR = func(m []byte) []byte { return m[:0x1008] } }, want: "no room for I/O doorbells"},
		{name: "never ready", setup: func(b *testrig.Intercepted, _ *softctl.Rules) {
			b.OnRead64 = setCAP(shortTO, 0)
			b.OnRead32 = func(off int64, v uint32) uint32 {
				if off == nvme.RegCSTS {
					v &^= 1
				}
				return v
			}
		}, want: "enabling timed out after 500ms (CAP.TO), CSTS 0x0 (ready false, fatal false, shutdown 0)"},
		{name: "fatal", setup: func(b *testrig.Intercepted, _ *softctl.Rules) {
			b.OnRead32 = func(off int64, v uint32) uint32 {
				if off == nvme.RegCSTS {
					v = v&^1 | 2
				}
				return v
			}
		}, want: "enabling: the controller reports a fatal error"},
		{name: "CSTS all ones", setup: func(b *testrig.Intercepted, _ *softctl.Rules) {
			b.OnRead32 = func(off int64, v uint32) uint32 {
				if off == nvme.RegCSTS {
					v = ^uint32(0)
				}
				return v
			}
		}, want: "the device is gone (CSTS reads all ones)"},
		{name: "Identify fails", setup: func(_ *testrig.Intercepted, r *softctl.Rules) {
			r.Add(softctl.Rule{Admin: true, Opcode: &identify, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInternal)}})
		}, want: "identify CNS 01h: nvme: Identify: Internal Error"},
		{name: "Identify never ends", setup: func(_ *testrig.Intercepted, r *softctl.Rules) {
			r.Add(softctl.Rule{Admin: true, Opcode: &identify, Do: softctl.Verdict{Drop: true}})
		}, want: "Identify timed out after 100ms, CSTS 0x1"},
		{name: "wrong CID", setup: func(_ *testrig.Intercepted, r *softctl.Rules) {
			r.Add(softctl.Rule{Admin: true, Opcode: &identify, Do: softctl.Verdict{XorCID: 0x100}})
		}, want: "completed admin command 0x100, which was not outstanding"},
		{name: "entry size", setup: func(b *testrig.Intercepted, _ *softctl.Rules) { b.OnAdminData = func(d []byte) { d[512] = 0x77 } },
			want: "submission queue entries are 128 to 128 bytes; this host builds 64"},
		{name: "queues", setup: func(_ *testrig.Intercepted, r *softctl.Rules) {
			r.Add(softctl.Rule{Admin: true, Opcode: &setFeatures, Do: softctl.Verdict{Status: softctl.Status(nvme.StatusInvalidField)}})
		}, want: "feature 07h: nvme: Set Features: Invalid Field in Command"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, cfg, rules := testrig.Intercept(t, tc.so)
			tc.setup(b, rules)
			_, err := controller.Open(cfg)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "nvme controller "+b.Name()+": ")
		})
	}
}

// TestStuck: a controller left ready that does not obey CC.EN is reset through the transport.
func TestStuck(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	b.OnRead64 = func(off int64, v uint64) uint64 {
		if off == nvme.RegCAP {
			v &^= 0xff << 24 // CAP.TO: the shortest
		}
		return v
	}
	b.OnRead32 = func(off int64, v uint32) uint32 {
		if off == nvme.RegCSTS && b.Resets == 0 {
			v |= 1
		}
		return v
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	require.Equal(t, 1, b.Resets)
	require.NoError(t, c.Close())
}

func TestOpenNeeds(t *testing.T) {
	_, err := controller.Open(controller.Config{})
	require.ErrorContains(t, err, "needs a Runtime and a Transport")
}

// TestUnusableNamespace: a namespace that LaneFS cannot use is named, and no command reaches it.
func TestUnusableNamespace(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{Namespaces: 2})
	b.OnAdminData = func(d []byte) {
		if n := binary.LittleEndian.Uint64(d); n == testrig.ImageSize/2/512 { // an Identify Namespace
			binary.LittleEndian.PutUint16(d[128:], 8)
		}
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Namespace(1)
	require.ErrorContains(t, err, "namespace 1: the namespace has 8 bytes of metadata per block, which is not supported")
	_, err = c.Namespace(3)
	require.ErrorContains(t, err, "no active namespace 3; it has [1 2]")

	// One of the subsystem that another controller has, or none.
	b.OnAdminData = func(d []byte) { binary.LittleEndian.PutUint32(d, 3) }
	_, err = c.Namespace(3)
	require.ErrorContains(t, err, "no active namespace 3; it has [1 2]", "the controller has no list of what is not attached")
	c.Identify().OACS |= 1 << 3
	_, err = c.Namespace(3)
	require.ErrorContains(t, err, "namespace 3 is not attached to this controller (CNTLID 1), which has [1 2]: attach it there first")
	_, err = c.Namespace(4)
	require.ErrorContains(t, err, "no active namespace 4; it has [1 2]")
	b.OnAdminData = nil
	e, err := engine.New(c, engine.Config{Lanes: 1})
	require.NoError(t, err)
	require.ErrorContains(t, e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}), "namespace 1 is not one that can be used")
}

func TestIdentify(t *testing.T) {
	r := testrig.Open(t, softctl.Options{Namespaces: 3, BlockSize: 4096, Serial: "LANE0001", Model: "Modell", Firmware: "0.9", MaxTransfer: 64 << 10, Queues: 5, Version: softctl.Version20})
	id := r.Controller.Identify()
	require.Equal(t, [3]string{"LANE0001", "Modell", "0.9"}, [3]string{id.SN, id.MN, id.FR})
	require.EqualValues(t, 64<<10, r.Controller.MaxTransfer())
	require.Equal(t, 5, r.Controller.Queues(), "64 were asked for")
	require.True(t, r.Controller.Simulated())
	require.True(t, r.Controller.Version().AtLeast(2, 0))
	require.Len(t, r.Controller.Namespaces(), 3)
	for i, ns := range r.Controller.Namespaces() {
		require.EqualValues(t, i+1, ns.ID)
		require.EqualValues(t, 4096, ns.BlockSize)
		require.Positive(t, ns.Blocks)
		require.NoError(t, ns.Unusable)
		require.Equal(t, nvme.CSINVM, ns.Descriptor.CSI)
	}
	// Each namespace is its own array of blocks.
	eng, err := engine.New(r.Controller, engine.Config{})
	require.NoError(t, err)
	r.Engine = eng
	c := r.Chunk(t, 3*4096)
	fill.Fill(c.Bytes(), 1)
	var cmds []engine.Command
	for i := range 3 {
		w := r.RW(nvme.IOWrite, 0, c, int64(i)*4096, 4096)
		w.NSID = uint32(i + 1)
		cmds = append(cmds, w)
	}
	require.NoError(t, eng.Do(0, cmds))
	want := append([]byte(nil), c.Bytes()...)
	clear(c.Bytes())
	for i := range cmds {
		cmds[i].Op = nvme.IORead
	}
	require.NoError(t, eng.Do(0, cmds))
	require.Equal(t, want, c.Bytes())
}

func TestReadOnly(t *testing.T) {
	r := testrig.Open(t, softctl.Options{ReadOnly: true})
	require.True(t, r.Controller.Namespaces()[0].ReadOnly)
}

func TestFeaturesAndLogs(t *testing.T) {
	r := testrig.New(t, softctl.Options{}, engine.Config{Lanes: 1})
	present, on, err := r.Controller.WriteCache()
	require.NoError(t, err)
	require.True(t, present && on)
	_, err = r.Controller.SetFeature(nvme.FIDWriteCache, 0, 0)
	require.NoError(t, err)
	present, on, err = r.Controller.WriteCache()
	require.NoError(t, err)
	require.True(t, present && !on)
	_, err = r.Controller.GetFeature(0x7e, nvme.FeatureCurrent, 0, nil)
	require.ErrorContains(t, err, "feature 7eh: nvme: Get Features: Invalid Field in Command")
	require.ErrorContains(t, r.Controller.GetLogPage(0x70, 0xffffffff, make([]byte, 64)), "log page 70h: nvme: Get Log Page: Invalid Log Page")

	c := r.Chunk(t, 4096)
	require.NoError(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IOWrite, 0, c, 0, 4096)}))
	require.Error(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IORead, testrig.ImageSize/512, c, 0, 4096)}))
	smart, err := r.Controller.SMART()
	require.NoError(t, err)
	require.Empty(t, smart.Warning.Words())
	require.Equal(t, "1", smart.HostWrites.String())
	list, err := r.Controller.ErrorLog(4)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	var found bool
	for _, e := range list {
		found = found || e.Status.Is(nvme.StatusLBARange) && e.SQID == 1 && e.LBA == testrig.ImageSize/512
	}
	require.True(t, found, "%v", list)
}

func TestNoWriteCache(t *testing.T) {
	r := testrig.Open(t, softctl.Options{NoWriteCache: true})
	present, _, err := r.Controller.WriteCache()
	require.NoError(t, err)
	require.False(t, present)
}

// TestAsyncEvent: the controller complains of a doorbell; the event arrives without any command being executed, and a
// second one after it.
func TestAsyncEvent(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	var seen atomic.Int32
	cfg.OnEvent = func(e nvme.AsyncEvent) {
		if e.Type() == nvme.AsyncError && e.LID() == nvme.LIDError {
			seen.Add(1)
		}
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()
	for n := int32(1); n <= 2; n++ {
		// A doorbell of a queue that does not exist.
		binary.LittleEndian.PutUint32(b.Controller.BAR()[c.Capabilities().Stride().SQ(9):], 1)
		b.Step(9)
		require.Eventually(t, func() bool { return seen.Load() == n }, time.Minute, 10*time.Millisecond)
	}
}

// TestShutdown: Close asks for a normal shutdown before it disables the controller.
func TestShutdown(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{ShutdownDelay: 30 * time.Millisecond, ReadyDelay: 30 * time.Millisecond})
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = c.SMART()
	require.ErrorContains(t, err, "nvme controller is closed")
	require.Len(t, b.CCs, 3)
	require.True(t, b.CCs[0].EN())
	require.Equal(t, 64, b.CCs[0].IOSQES())
	require.Equal(t, 16, b.CCs[0].IOCQES())
	require.True(t, b.CCs[1].EN())
	require.Equal(t, nvme.SHNNormal, b.CCs[1].SHN())
	require.False(t, b.CCs[2].EN())
	// And it can be opened again, even without a shutdown in between.
	c, err = controller.Open(cfg)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestAdminLost: an admin command that never ends takes the controller through a reset, found by the watch.
func TestAdminLost(t *testing.T) {
	b, cfg, rules := testrig.Intercept(t, softctl.Options{})
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()
	smart := uint8(nvme.AdminGetLogPage)
	rules.Add(softctl.Rule{Admin: true, Opcode: &smart, Times: 1, Do: softctl.Verdict{Drop: true}})
	_, err = c.SMART()
	require.ErrorIs(t, err, controller.ErrTimeout)
	if _, err = c.SMART(); err != nil { // else the watch was there before
		require.ErrorContains(t, err, "the admin queue is out of service: Get Log Page timed out")
	}
	require.Eventually(t, func() bool { _, err := c.SMART(); return err == nil && c.Generation() > 0 }, time.Minute, 20*time.Millisecond)
	require.NoError(t, c.Err())
	require.Zero(t, b.Resets, "CC.EN was enough")
}

// TestSwapped: after a reset another device answers; it is not used.
func TestSwapped(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()
	b.OnAdminData = func(d []byte) { copy(d[4:24], "ANOTHER             ") }
	require.ErrorContains(t, c.Reset(), `after the reset the controller is "LaneFS software controller" ("ANOTHER")`)
	require.Positive(t, b.Resets, "it is stopped before its memory is freed")
	_, err = c.SMART()
	require.ErrorContains(t, err, "Get Log Page: nvme controller "+b.Name()+" is out of service")
}

// TestShrunk: after a reset a namespace has fewer blocks than the layers above were given.
func TestShrunk(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	defer c.Close()
	b.OnAdminData = func(d []byte) {
		if binary.LittleEndian.Uint64(d) == testrig.ImageSize/512 {
			binary.LittleEndian.PutUint64(d, 100)
		}
	}
	require.ErrorContains(t, c.Reset(), "after the reset namespace 1 has 100 blocks of 512 bytes, before it had 32768 of 512")
}

func TestPlacement(t *testing.T) {
	p, err := controller.MemoryMode(0).Placement()
	require.NoError(t, err)
	require.Zero(t, p)
	p, err = (controller.ModeSQ | controller.ModeCQ | controller.ModeData).Placement()
	require.NoError(t, err)
	require.Equal(t, controller.Placement{SQ: gpu.DeviceFine, CQ: gpu.DeviceUncached, Data: gpu.DeviceFine}, p)
	for m := range controller.MemoryMode(16) {
		require.Equal(t, slices.Contains([]controller.MemoryMode{0, 1, 4, 5, 10, 11, 14, 15}, m), m.Ordered(), "completions (2) and data (8) are in one memory: mode %d", m)
	}
	for _, bad := range []controller.MemoryMode{16, 255} {
		_, err := bad.Placement()
		require.ErrorContains(t, err, "memory mode")
	}
}

// TestStaleStatus: a controller that was reset while its status was being looked at is not reset again for what was seen before.
func TestStaleStatus(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{})
	cfg.Timeout = 0
	var armed, stale, again atomic.Bool
	var c *controller.Controller
	b.OnRead32 = func(off int64, v uint32) uint32 {
		if off != nvme.RegCSTS {
			return v
		}
		again.Store(stale.Load())
		if armed.CompareAndSwap(true, false) {
			done := make(chan error)
			go func() { done <- c.Reset() }()
			if err := <-done; err != nil {
				t.Error(err)
			}
			stale.Store(true)
			return v | 2 // CFS, as it was before the reset
		}
		return v
	}
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	armed.Store(true)
	require.Eventually(t, func() bool { return again.Load() }, time.Minute, time.Millisecond, "the next look")
	time.Sleep(10 * time.Millisecond) // of a reset, if it is one
	require.EqualValues(t, 1, c.Generation())
}

// pinned notes what is registered.
type pinned struct {
	gpu.Runtime
	b []byte
}

func (p *pinned) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	p.b = b
	return p.Runtime.Register(b, as)
}

// TestDoorbellPages: of a BAR the kernels get the pages with doorbells, each of which was accessed before.
func TestDoorbellPages(t *testing.T) {
	b, cfg, _ := testrig.Intercept(t, softctl.Options{Queues: 1500})
	rt := &pinned{Runtime: cfg.Runtime}
	cfg.Runtime, cfg.Timeout, cfg.Queues = rt, 0, 1500
	read := map[int64]bool{}
	b.OnRead32 = func(off int64, v uint32) uint32 {
		if off >= 0x1000 {
			read[off/4096] = rt.b == nil
		}
		return v
	}
	b.OnBAR = func(m []byte) []byte { return m[:len(m):len(m)] }
	c, err := controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	bar, err := c.AcquireBAR()
	require.NoError(t, err)
	last := c.Doorbells().End(uint16(c.Queues()))
	require.Greater(t, last, int64(0x1000+2*4096), "three pages")
	require.Equal(t, unsafe.Pointer(&b.BAR()[0x1000]), unsafe.Pointer(&rt.b[0]), "no page before the doorbells")
	require.GreaterOrEqual(t, int64(0x1000+len(rt.b)), last)
	require.Less(t, int64(0x1000+len(rt.b)), last+4096, "nor one after them")
	for page := int64(1); page*4096 < last; page++ {
		require.True(t, read[page], "page %d was accessed before the registration", page)
	}
	require.Equal(t, bar.Addr(), bar.At(0x1000))
	require.NoError(t, c.ReleaseBAR())
}

// TestRetryDelaysEnabled: a controller with retry delays is told, after every enable, that the host knows them; one without is not.
func TestRetryDelaysEnabled(t *testing.T) {
	for _, delays := range []bool{false, true} {
		b, cfg, _ := testrig.Intercept(t, softctl.Options{})
		cfg.Timeout = 0
		seen := map[int]bool{} // places in the queue where ACRE was set
		b.OnAdminData = func(d []byte) {
			if delays && d[512] == 0x66 && d[513] == 0x44 { // Identify Controller: SQES, CQES
				binary.LittleEndian.PutUint16(d[128:], 5) // CRDT1
			}
			for at := 0; at < 4096; at += nvme.SQESize {
				e, err := nvme.DecodeSQE(b.Admin[at : at+nvme.SQESize])
				if err == nil && e.Opcode == nvme.AdminSetFeatures && e.CDW10 == uint32(nvme.FIDHostBehavior) && d[0] == 1 && len(bytes.Trim(d[1:512], "\x00")) == 0 {
					seen[at] = true
				}
			}
		}
		c, err := controller.Open(cfg)
		require.NoError(t, err)
		require.Equal(t, delays, len(seen) == 1)
		require.Equal(t, delays, c.Identify().RetryDelay(1) == 500*time.Millisecond)
		clear(seen)
		require.NoError(t, c.Reset())
		require.Equal(t, delays, len(seen) == 1, "again after a reset")
		require.NoError(t, c.Close())
	}
}
