package main

import (
	"encoding/binary"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// useRightly opens a file, registers memory and makes a ring, correctly: attacks need them.
func (t *fuzzer) useRightly(c *client) {
	fd, err := unix.Open(filepath.Join(t.mnt, []string{readable, writable}[t.rng.IntN(2)]), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	number := func(reply []byte) {
		if len(reply) >= 4 {
			c.handles = append(c.handles, binary.LittleEndian.Uint32(reply))
		}
	}
	reply, _ := t.call(c, wire.TOpen, &wire.Open{}, fd)
	number(reply)
	reply, fds := t.call(c, wire.TMap, &wire.Map{}, fd)
	number(reply)
	c.memory = append(c.memory, fds...)
	if own, err := unix.MemfdCreate("own", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
		_ = unix.Ftruncate(own, 1<<20)
		reply, _ = t.call(c, wire.TRegister, &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: 1 << 20}, own)
		number(reply)
		c.own = append(c.own, own)
	}
	reply, fds = t.call(c, wire.TRing, &wire.Ring{Entries: 1 << t.rng.IntN(9)})
	number(reply)
	if len(fds) != 3 || len(reply) < 24 {
		wire.CloseAll(fds)
		return
	}
	entries, size := binary.LittleEndian.Uint32(reply[4:]), int(binary.LittleEndian.Uint64(reply[16:]))
	if m, err := wire.MapShared(fds[0], size, true); err == nil {
		if r, err := wire.NewRings(m, entries); err == nil {
			c.rings, c.bells = append(c.rings, r), append(c.bells, fds[1])
		}
	}
	c.memory, c.signals = append(c.memory, fds[0]), append(c.signals, fds[2])
	t.trim(c)
}

// write writes to a ring: valid requests, random words, and changes to requests in progress.
func (t *fuzzer) write(c *client) {
	if len(c.rings) == 0 {
		t.useRightly(c)
		return
	}
	i := t.rng.IntN(len(c.rings))
	r := c.rings[i]
	for range 1 + t.rng.IntN(20) {
		s := wire.Submission{Data: t.rng.Uint64(), Op: wire.Op(t.rng.IntN(5)), File: t.handle(c), Memory: t.handle(c),
			FileOff: t.number(), MemOff: t.number(), Len: t.number()}
		if t.rng.IntN(2) == 0 {
			s.FileOff, s.MemOff, s.Len = t.rng.Uint64N(2<<20), t.rng.Uint64N(1<<19), t.rng.Uint64N(1<<19)
		}
		_, _ = r.Submit([]wire.Submission{s})
	}
	b := r.Bytes()
	switch t.rng.IntN(6) {
	case 0: // any word
		r.Word32(64 * t.rng.IntN(6)).Store(t.rng.Uint32())
	case 1: // any entry
		at := 4096 + 8*t.rng.IntN((len(b)-4096)/8)
		r.Word(at).Store(t.number())
	case 2:
		var got [64]wire.Completion
		_, _ = r.Reap(got[:])
	case 3:
		r.ClientSleeps(true)
	}
	if bell := t.any(c.bells); bell >= 0 && t.rng.IntN(3) > 0 {
		flags, _ := unix.FcntlInt(uintptr(bell), unix.F_GETFL, 0)
		if flags&unix.O_NONBLOCK != 0 || r.WakeDaemon() {
			_ = unix.SetNonblock(bell, true)
			wire.RingDoorbell(bell)
		}
	}
	if t.rng.IntN(50) == 0 {
		time.Sleep(time.Millisecond)
	}
}
