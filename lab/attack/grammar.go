package main

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// number returns a random number, often near a limit.
func (t *fuzzer) number() uint64 {
	edges := []uint64{0, 1, 4095, 4096, 4097, 1 << 20, 3 << 20, 1<<31 - 1, 1 << 32, 1 << 45, 1 << 46, 1<<46 + 4096, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	switch t.rng.IntN(4) {
	case 0:
		return edges[t.rng.IntN(len(edges))]
	case 1:
		return t.rng.Uint64() >> t.rng.IntN(64)
	case 2:
		return t.rng.Uint64N(1<<14) << 12
	}
	return t.rng.Uint64N(16)
}

// descriptor opens something of every kind that an ordinary user can have.
func (t *fuzzer) descriptor() int {
	mask := unix.O_CLOEXEC
	open := func(path string, flags int) int {
		fd, err := unix.Open(path, flags|mask, 0)
		if err != nil {
			return -1
		}
		return fd
	}
	pair := func(fds []int, err error) int {
		if err != nil {
			return -1
		}
		i := t.rng.IntN(2)
		unix.Close(fds[1-i])
		return fds[i]
	}
	in := func(name string) string { return filepath.Join(t.mnt, name) }
	switch t.rng.IntN(16) {
	case 0, 1, 2:
		return open(in(readable), unix.O_RDONLY)
	case 3, 4:
		return open(in(writable), []int{unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_APPEND, unix.O_RDWR | unix.O_DIRECT}[t.rng.IntN(4)])
	case 5:
		return open(in([]string{readable, secret, "."}[t.rng.IntN(3)]), unix.O_PATH)
	case 6:
		return open(t.mnt, unix.O_RDONLY|unix.O_DIRECTORY)
	case 7:
		return open([]string{"/dev/null", "/dev/zero", "/dev/ptmx", "/dev/random", "/proc/self/maps", "/", "/etc/passwd", "/dev/fuse"}[t.rng.IntN(8)], unix.O_RDONLY)
	case 8:
		var fds [2]int
		err := unix.Pipe2(fds[:], unix.O_CLOEXEC|t.rng.IntN(2)*unix.O_DIRECT)
		return pair(fds[:], err)
	case 9:
		fds, err := unix.Socketpair(unix.AF_UNIX, []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM}[t.rng.IntN(3)]|unix.SOCK_CLOEXEC, 0)
		if err == nil && t.rng.IntN(2) == 0 {
			t.send(fds[0], []byte{1}, fds[0], fds[1]) // in itself
		}
		return pair(fds[:], err)
	case 10:
		fd, _ := unix.Eventfd(uint(t.rng.Uint32()), unix.EFD_CLOEXEC)
		return fd
	case 11:
		fd, _ := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		return fd
	case 12: // a connection to the daemon, with bytes in it
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil && unix.Connect(fd, &unix.SockaddrUnix{Name: t.socket}) == nil {
			t.send(fd, t.randomMessage())
		}
		return fd
	}
	return t.memfd()
}

// memfd returns a memfd of any size, with any seals and huge pages or not.
func (t *fuzzer) memfd() int {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if t.rng.IntN(20) == 0 {
		flags |= unix.MFD_HUGETLB
	}
	fd, err := unix.MemfdCreate("attack", flags)
	if err != nil {
		return -1
	}
	_ = unix.Ftruncate(fd, int64(t.number()>>1))
	if t.rng.IntN(3) == 0 {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, t.rng.IntN(64))
	}
	return fd
}

// rights are descriptors for a message; they are the message's, and closed before the next.
func (t *fuzzer) rights() []int {
	n := []int{0, 1, 1, 1, 1, 2, 5, 250}[t.rng.IntN(8)]
	one := t.descriptor()
	if one < 0 {
		return nil
	}
	t.kept = append(t.kept, one)
	all := make([]int, n)
	for i := range all {
		all[i] = one
	}
	return all
}

func (t *fuzzer) handle(c *client) uint32 {
	if len(c.handles) > 0 && t.rng.IntN(8) > 0 {
		return c.handles[t.rng.IntN(len(c.handles))]
	}
	return uint32(t.number())
}

// request returns a well-formed request with any content.
func (t *fuzzer) request(c *client) {
	n := t.number
	var kind wire.Type
	var body any
	switch t.rng.IntN(8) {
	case 0, 1:
		kind, body = wire.TMap, &wire.Map{Off: n(), Len: n(), Flags: wire.MapFlags(t.rng.IntN(5))}
	case 2:
		kind, body = wire.TRelease, &wire.Release{Handle: t.handle(c), Flags: wire.ReleaseFlags(t.rng.IntN(4))}
	case 3:
		kind, body = wire.TCommit, &wire.Commit{Handle: t.handle(c), MemOff: n(), FileOff: n() >> 40, Len: n() >> t.rng.IntN(44)}
	case 4:
		kind, body = wire.TPin, &wire.Pin{On: uint32(n()), Owner: uint32(n())}
	case 5:
		kind, body = wire.TRegister, &wire.Register{Kind: uint32(t.rng.IntN(6)), FDOff: n(), Size: n()}
	case 6:
		kind, body = wire.TOpen, &wire.Open{}
	default:
		kind, body = wire.TRing, &wire.Ring{Entries: uint32(n())}
	}
	reply, fds := t.call(c, kind, body, t.rights()...)
	c.memory = append(c.memory, fds...)
	if len(reply) >= 4 {
		c.handles = append(c.handles, binary.LittleEndian.Uint32(reply))
	}
	t.trim(c)
}

// trim keeps a client from having too many descriptors of its own.
func (t *fuzzer) trim(c *client) {
	for _, l := range []*[]int{&c.memory, &c.own, &c.signals, &c.bells} {
		for len(*l) > 20 {
			unix.Close((*l)[0])
			*l = (*l)[1:]
		}
	}
}

func (t *fuzzer) randomMessage() []byte {
	b := make([]byte, t.rng.IntN(80))
	if t.rng.IntN(20) == 0 {
		b = make([]byte, t.rng.IntN(1<<16))
	}
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], t.number())
	}
	if len(b) >= wire.HeaderSize && t.rng.IntN(4) > 0 { // a header that is right
		binary.LittleEndian.PutUint16(b, uint16(t.rng.IntN(12)))
		binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	}
	return b
}

// garbage is any bytes and any descriptors, often many of them.
func (t *fuzzer) garbage(c *client) {
	for range 1 + t.rng.IntN(10) {
		t.send(c.fd, t.randomMessage(), t.rights()...)
	}
	if t.rng.IntN(2) == 0 {
		_, fds := t.receive(c)
		wire.CloseAll(fds)
	}
}

// spoil changes a signal's descriptor: it fills it, has it send SIGIO, shuts it down, writes to it, reads from it, or sets its
// buffer size.
func (t *fuzzer) spoil(fd int) {
	if fd < 0 {
		return
	}
	full := binary.LittleEndian.AppendUint64(nil, 1<<64-2)
	switch t.rng.IntN(6) {
	case 0:
		flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK)
		for range 10 {
			_, _ = unix.Write(fd, full)
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	case 1:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETOWN, os.Getpid())
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK|unix.O_ASYNC)
	case 2:
		_ = unix.Shutdown(fd, t.rng.IntN(3))
	case 3:
		_ = unix.Sendmsg(fd, []byte{1}, unix.UnixRights(t.rights()...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	case 4:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
		var b [64]byte
		_, _ = unix.Read(fd, b[:])
	default:
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, t.rng.IntN(1<<20))
	}
}

// reseal seals memory, changes its size or mode, allocates or frees pages of it, so that others may fail on it.
func (t *fuzzer) reseal(fd int) {
	if fd < 0 {
		return
	}
	switch t.rng.IntN(6) {
	case 0:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, 1<<t.rng.IntN(6))
	case 1:
		_ = unix.Ftruncate(fd, int64(t.number()>>1))
	case 2:
		_ = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)
	case 3:
		_ = unix.Fallocate(fd, 0, int64(t.number()>>40), 1<<20)
	case 4:
		_ = unix.Fchmod(fd, uint32(t.rng.IntN(0o1000)))
	default:
		if b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			_ = unix.Madvise(b, unix.MADV_REMOVE)
			_ = unix.Munmap(b)
		}
	}
}
