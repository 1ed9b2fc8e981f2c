package softctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCapabilities(t *testing.T) {
	h := newHost(t, Options{Depth: 64, Stride: 3})
	lo, hi := h.c.Read32(0), h.c.Read32(4)
	require.Equal(t, uint64(hi)<<32|uint64(lo), h.c.Read64(0))
	require.Equal(t, uint32(63), lo&0xffff, "MQES")
	require.Equal(t, uint32(1), lo>>16&1, "CQR")
	require.Equal(t, uint32(10), lo>>24, "TO in 500 ms")
	require.Equal(t, uint32(3), hi&15, "DSTRD")
	require.Equal(t, uint32(1), hi>>4&1, "NSSRS")
	require.Equal(t, uint32(1), hi>>5&0xff, "CSS")
	require.Equal(t, uint32(0), hi>>16&15, "MPSMIN")
	require.Equal(t, uint32(4), hi>>20&15, "MPSMAX")
	require.Equal(t, uint32(0x10400), h.c.Read32(8))
	require.Zero(t, h.c.Read32(0x38), "CMBLOC")
	require.Zero(t, h.c.Read32(0x3c), "CMBSZ")

	h = newHost(t, Options{Version: Version20})
	require.Equal(t, uint32(0x41), h.c.Read32(4)>>5&0xff, "CSS")
	require.Equal(t, uint32(1), h.c.Read32(4)>>27&3, "CRMS")
	require.Equal(t, uint32(0x20000), h.c.Read32(8))
	require.Equal(t, uint32(10), h.c.Read32(0x68)&0xffff, "CRTO.CRWMT")
}

func TestRegistersKeepTheirNature(t *testing.T) {
	h := newHost(t, Options{})
	before, vs := h.c.Read64(0), h.c.Read32(8)
	h.c.Write64(0, ^uint64(0))
	h.c.Write32(8, 1)
	h.c.Write32(0x1c, ^uint32(0))
	require.Equal(t, before, h.c.Read64(0))
	require.Equal(t, vs, h.c.Read32(8))
	require.Zero(t, h.c.Read32(0x1c))

	h.c.Write32(0x0c, 0xf0)
	h.c.Write32(0x0c, 0x0f)
	h.c.Write32(0x10, 0x11)
	require.Equal(t, uint32(0xee), h.c.Read32(0x0c))
	require.Equal(t, uint32(0xee), h.c.Read32(0x10))

	h.c.Write32(0x24, ^uint32(0))
	require.Equal(t, uint32(0x0fff0fff), h.c.Read32(0x24))
	h.c.Write64(0x28, 0x1234_5678_9abc_d000)
	require.Equal(t, uint64(0x1234_5678_9abc_d000), h.c.Read64(0x28))

	for _, off := range []int64{-4, 1, 2, int64(len(h.c.BAR())), int64(len(h.c.BAR())) - 2, 1 << 60} {
		require.Equal(t, ^uint32(0), h.c.Read32(off), "offset %d", off)
		h.c.Write32(off, 1)
	}
	require.GreaterOrEqual(t, len(h.c.BAR()), 16<<10)
	require.Equal(t, h.path, h.c.Name())
}

func TestEnable(t *testing.T) {
	good := func(h *host) (aqa uint32, asq, acq uint64, cc uint32) {
		_, a := h.alloc(64 << 10)
		_, b := h.alloc(64 << 10)
		return 31 | 31<<16, a, b, enableCC
	}
	type regs struct {
		aqa      *uint32
		asq, acq *uint64
		cc       *uint32
	}
	for _, tc := range []struct {
		name  string
		edit  func(regs)
		fatal bool
	}{
		{"as it should be", func(regs) {}, false},
		{"entry sizes later", func(r regs) { *r.cc = 1 }, false},
		{"64 KiB pages", func(r regs) { *r.cc |= 4 << 7 }, false},
		{"smallest queues", func(r regs) { *r.aqa = 1 | 1<<16 }, false},
		{"AQA zero", func(r regs) { *r.aqa = 0 }, true},
		{"ASQS zero", func(r regs) { *r.aqa = 31 << 16 }, true},
		{"ACQS zero", func(r regs) { *r.aqa = 31 }, true},
		{"ASQ zero", func(r regs) { *r.asq = 0 }, true},
		{"ACQ zero", func(r regs) { *r.acq = 0 }, true},
		{"ASQ unaligned", func(r regs) { *r.asq += 64 }, true},
		{"ACQ unaligned for the page size", func(r regs) { *r.cc |= 1 << 7; *r.acq += 4096 }, true},
		{"ASQ unmapped", func(r regs) { *r.asq = 0x1000 }, true},
		{"ACQ runs out of the mapping", func(r regs) { *r.acq += 16<<20 - 4096; *r.aqa = 31 | 4095<<16 }, true},
		{"MPS", func(r regs) { *r.cc |= 5 << 7 }, true},
		{"CSS admin only", func(r regs) { *r.cc |= 7 << 4 }, true},
		{"CSS all", func(r regs) { *r.cc |= 6 << 4 }, true},
		{"AMS", func(r regs) { *r.cc |= 1 << 11 }, true},
		{"IOSQES", func(r regs) { *r.cc ^= 1 << 16 }, true},
		{"IOCQES", func(r regs) { *r.cc ^= 1 << 20 }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t, Options{})
			aqa, asq, acq, cc := good(h)
			tc.edit(regs{&aqa, &asq, &acq, &cc})
			h.c.Write32(0x24, aqa)
			h.c.Write64(0x28, asq)
			h.c.Write64(0x30, acq)
			h.c.Write32(0x14, cc)
			if !tc.fatal {
				require.Equal(t, uint32(1), h.c.Read32(0x1c))
				return
			}
			require.Equal(t, uint32(2), h.c.Read32(0x1c), "CFS and not ready")
			require.False(t, h.c.Step(0))
			h.c.Write32(0x14, 0)
			require.Zero(t, h.c.Read32(0x1c), "a reset clears CFS")
			h.enable()
		})
	}
	h := newHost(t, Options{Version: Version20})
	aqa, asq, acq, cc := good(h)
	h.c.Write32(0x24, aqa)
	h.c.Write64(0x28, asq)
	h.c.Write64(0x30, acq)
	h.c.Write32(0x14, cc|6<<4)
	require.Equal(t, uint32(1), h.c.Read32(0x1c), "CSS all, version 2.0")
}

func TestReadyTakesItsTime(t *testing.T) {
	const delay = 30 * time.Millisecond
	h := newHost(t, Options{ReadyDelay: delay})
	h.admin = h.newPair(0, 32)
	h.c.Write32(0x24, 31|31<<16)
	h.c.Write64(0x28, h.admin.sqAt)
	h.c.Write64(0x30, h.admin.cqAt)
	begin := time.Now()
	h.c.Write32(0x14, enableCC)
	if csts := h.c.Read32(0x1c); time.Since(begin) < delay { // a busy machine may come to it late
		require.Zero(t, csts&1)
	}
	h.put(h.admin, cmdOf(0x06, 0).dw(10, 1).prp(h.admin.cqAt, 0))
	h.ring(h.admin)
	require.Eventually(t, func() bool { return h.c.Read32(0x1c) == 1 }, time.Minute, time.Millisecond)
}

func TestControllerReset(t *testing.T) {
	h, q := ready(t, Options{})
	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 0x06).dw(11, 0)) // write cache off
	aqa, asq := h.c.Read32(0x24), h.c.Read64(0x28)
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.ring(q)
	h.c.Write32(0x14, enableCC&^1)
	require.Zero(t, h.c.Read32(0x1c))
	require.Equal(t, aqa, h.c.Read32(0x24), "AQA is kept")
	require.Equal(t, asq, h.c.Read64(0x28), "ASQ is kept")
	require.False(t, h.c.Step(1))
	require.False(t, h.c.Step(0))
	_, ok := h.poll(q)
	require.False(t, ok, "the queue is gone")

	h.enable()
	require.Equal(t, uint32(1), h.adminDo(cmdOf(0x0a, 0).dw(10, 0x06))[0], "features are back at their defaults")
	q = h.queue(1, 16)
	h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))

	require.NoError(t, h.c.Reset())
	require.Zero(t, h.c.Read32(0x14))
	require.Zero(t, h.c.Read32(0x1c))
	require.Zero(t, h.c.Read32(0x24), "AQA is not kept by a function-level reset")
	h.enable()
	q = h.queue(1, 16)
	h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))

	h.c.Write32(0x20, 1)
	require.Equal(t, uint32(1), h.c.Read32(0x1c), "NSSR wants its magic number")
	h.c.Write32(0x20, 0x4e564d65)
	require.Equal(t, uint32(1<<4), h.c.Read32(0x1c), "NSSRO")
	h.c.Write32(0x1c, 1<<4)
	require.Zero(t, h.c.Read32(0x1c))
	h.enable()
}

func TestShutdown(t *testing.T) {
	const delay = 20 * time.Millisecond
	for _, shn := range []uint32{1, 2} {
		h, q := ready(t, Options{ShutdownDelay: delay})
		begin := time.Now()
		h.c.Write32(0x14, enableCC|shn<<14)
		if csts := h.c.Read32(0x1c); time.Since(begin) < delay {
			require.Equal(t, uint32(1<<2|1), csts, "shutdown processing")
		}
		require.Eventually(t, func() bool { return h.c.Read32(0x1c) == 2<<2|1 }, time.Minute, time.Millisecond)
		h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
		h.ring(q)
		require.False(t, h.c.Step(1), "no command is carried out after a shutdown")
		h.c.Write32(0x14, 0)
		require.Zero(t, h.c.Read32(0x1c))
		h.enable()
	}
	h := newHost(t, Options{})
	h.c.Write32(0x14, 1<<14)
	require.Equal(t, uint32(2<<2), h.c.Read32(0x1c), "shutdown of a controller that is not enabled")
	h.enable()
}

func TestConfigurationIsFixedWhileEnabled(t *testing.T) {
	h := newHost(t, Options{}).enable()
	h.c.Write32(0x14, enableCC|2<<7)
	require.Equal(t, uint32(enableCC), h.c.Read32(0x14))
	h.c.Write32(0x24, 0)
	require.NotZero(t, h.c.Read32(0x24), "AQA cannot change while enabled")
}

func TestFatalWhenAQueueIsNotMapped(t *testing.T) {
	h, q := ready(t, Options{})
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.ring(q)
	require.NoError(t, h.c.Unmap(0x10_0000_0000))
	h.c.Step(1)
	require.Equal(t, uint32(3), h.c.Read32(0x1c))
	require.False(t, h.c.Step(1))
	require.Error(t, h.c.Unmap(0x10_0000_0000))
}

func TestAfterClose(t *testing.T) {
	h, _ := ready(t, Options{})
	require.NoError(t, h.c.Close())
	require.NoError(t, h.c.Close())
	require.Equal(t, ^uint32(0), h.c.Read32(0x1c))
	h.c.Write32(0x14, enableCC)
	require.False(t, h.c.Step(0))
	require.False(t, h.c.Step(1))
	require.Error(t, h.c.Reset())
	c, err := Open(h.path, Options{})
	require.NoError(t, err, "the lock is gone")
	require.NoError(t, c.Close())
}
