package share_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

const mib = 1 << 20

// TestMalformed: nothing that a client can send does more than end its own connection.
func TestMalformed(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := bytes.Repeat([]byte("lanefs"), 50000)
	f := m.Write("file", data)
	works(t, f, data)
	settled(t, m, 0)
	before := descriptors(t)
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	hello := wire.Encode(wire.Header{Type: wire.THello}, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1})
	mapping := wire.Encode(wire.Header{Type: wire.TMap}, &wire.Map{})
	badLength := append([]byte{}, hello...)
	binary.LittleEndian.PutUint32(badLength[4:], 1<<31)
	for name, send := range map[string]func(c *wire.Conn) error{
		"one byte":     func(c *wire.Conn) error { return c.Send([]byte{1}) },
		"oversized":    func(c *wire.Conn) error { return c.Send(make([]byte, 1<<16)) },
		"truncated":    func(c *wire.Conn) error { return c.Send(hello[:len(hello)-1]) },
		"wrong length": func(c *wire.Conn) error { return c.Send(badLength) },
		"empty":        func(c *wire.Conn) error { return c.Send(nil) },
		"no hello":     func(c *wire.Conn) error { return c.Send(mapping, int(f.Fd())) },
		"wrong magic": func(c *wire.Conn) error {
			return c.Send(wire.Encode(wire.Header{Type: wire.THello}, &wire.Hello{Least: 1, Most: 1}))
		},
		"future": func(c *wire.Conn) error {
			return c.Send(wire.Encode(wire.Header{Type: wire.THello}, &wire.Hello{Magic: wire.Magic, Least: 7, Most: 8}))
		},
		"wrong size":    func(c *wire.Conn) error { return c.Send(wire.Encode(wire.Header{Type: wire.THello}, &wire.Release{})) },
		"rights":        func(c *wire.Conn) error { return c.Send(hello, pipe[0], pipe[1], pipe[0]) },
		"many rights":   func(c *wire.Conn) error { return c.Send([]byte("x"), repeat(pipe[0], 200)...) },
		"hang up":       func(c *wire.Conn) error { return c.CloseWrite() },
		"hang up early": func(c *wire.Conn) error { return errors.Join(c.Send(hello), c.Close()) },
	} {
		c, err := wire.Dial(socket(t, f))
		require.NoError(t, err)
		_ = send(c) // a refusal will do
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if h, _, rights, err := c.Receive(); err == nil {
			require.NotZero(t, h.Status, name)
			wire.CloseAll(rights)
		} else {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		}
		c.Close()
	}
	unix.Close(pipe[0])
	unix.Close(pipe[1])
	settled(t, m, 0)
	works(t, f, data)
	settled(t, m, 0)
	require.LessOrEqual(t, descriptors(t), before+slack, "descriptors leak")
}

// slack is what the Go runtime and the mount may open meanwhile.
const slack = 16

func repeat(fd, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = fd
	}
	return all
}

// TestRandomRequests: requests of every type with random bodies and rights, after a proper Hello.
func TestRandomRequests(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := make([]byte, 3*mib)
	f := m.Write("file", data)
	memfd := newMemfd(t, mib)
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := map[wire.Type]any{wire.TMap: &wire.Map{}, wire.TRelease: &wire.Release{}, wire.TCommit: &wire.Commit{}, wire.TPin: &wire.Pin{},
		wire.TRegister: &wire.Register{}, wire.TOpen: &wire.Open{}, wire.TRing: &wire.Ring{}, wire.TMoved: &wire.Moved{}}
	c := dial(t, f)
	greet(t, c)
	refused := 0
	for range 3000 {
		kind := wire.Type(rng.IntN(11))
		n := rng.IntN(64)
		if v, ok := sizes[kind]; ok && rng.IntN(8) > 0 {
			n = binary.Size(v)
		}
		body := make([]byte, n)
		for i := 0; i+8 <= n; i += 8 {
			switch rng.IntN(4) {
			case 0:
				binary.LittleEndian.PutUint64(body[i:], rng.Uint64())
			case 1:
				binary.LittleEndian.PutUint64(body[i:], uint64(rng.IntN(1<<21)))
			case 2:
				binary.LittleEndian.PutUint64(body[i:], uint64(rng.IntN(4)))
			}
		}
		var rights []int
		for range rng.IntN(6) / 4 * rng.IntN(3) {
			rights = append(rights, memfd)
		}
		if len(rights) == 0 && rng.IntN(3) > 0 {
			rights = []int{int(f.Fd())}
		}
		require.NoError(t, c.Send(wire.Encode(wire.Header{Type: kind, Tag: 7}, string(body)), rights...))
		c.SetReadDeadline(time.Now().Add(2 * time.Minute))
		h, text, got, err := c.Receive()
		require.NoError(t, err, "the connection survives what is well-formed")
		require.Equal(t, kind|wire.Reply, h.Type)
		if h.Status != 0 {
			refused++
			require.NotEmpty(t, text, "a refusal says why")
		}
		wire.CloseAll(got)
	}
	require.NotZero(t, refused)
	c.Close()
	settled(t, m, 0)
	for _, r := range m.Pool.Stats().Residents {
		require.Zero(t, r.Holders)
	}
	b, err := os.ReadFile(m.Path("file"))
	require.NoError(t, err)
	works(t, f, b)
}

// TestForeignMemory: what cannot be a program's memory is refused.
func TestForeignMemory(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", []byte("x"))
	s := connect(t, f)
	memfd := func(size int64, seals int, flags int) int {
		fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		require.NoError(t, unix.Ftruncate(fd, size))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return fd
	}
	regular, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer regular.Close()
	require.NoError(t, regular.Truncate(mib))
	good := memfd(mib, 0, 0)
	for name, e := range map[string]gpu.Export{
		"a file":             {FD: int(regular.Fd()), Size: mib, Kind: gpu.ExportMemFD},
		"of the mount":       {FD: int(f.Fd()), Size: mib, Kind: gpu.ExportMemFD},
		"too long":           {FD: good, Size: mib + 4096, Kind: gpu.ExportMemFD},
		"behind its end":     {FD: good, Offset: mib, Size: 4096, Kind: gpu.ExportMemFD},
		"far":                {FD: good, Offset: 1 << 45, Size: 4096, Kind: gpu.ExportMemFD},
		"not pages":          {FD: good, Size: 4097, Kind: gpu.ExportMemFD},
		"at no page":         {FD: good, Offset: 1, Size: 4096, Kind: gpu.ExportMemFD},
		"nothing":            {FD: good, Kind: gpu.ExportMemFD},
		"of another runtime": {FD: good, Size: mib, Kind: gpu.ExportPOSIX},
		"an IPC handle":      {FD: good, Size: mib, Kind: gpu.ExportIPC},
		"no IPC handle":      {FD: int(regular.Fd()), Size: mib, Kind: gpu.ExportIPC},
		"of no kind":         {FD: good, Size: mib, Kind: 77},
		"sealed for writing": {FD: memfd(mib, unix.F_SEAL_WRITE, 0), Size: mib, Kind: gpu.ExportMemFD},
		"that could shrink":  {FD: memfd(mib, unix.F_SEAL_SEAL, 0), Size: mib, Kind: gpu.ExportMemFD},
	} {
		_, err := s.Register(e)
		require.Error(t, err, name)
		require.ErrorIs(t, err, unix.EINVAL, name)
	}
	if huge, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil { // to touch a page that is not there raises SIGBUS
		t.Cleanup(func() { unix.Close(huge) })
		require.NoError(t, unix.Ftruncate(huge, 2*mib))
		_, err = s.Register(gpu.Export{FD: huge, Size: 2 * mib, Kind: gpu.ExportMemFD})
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, "not a memfd of ordinary pages")
	}
	ok, err := s.Register(gpu.Export{FD: good, Size: mib, Kind: gpu.ExportMemFD})
	require.NoError(t, err)
	require.ErrorIs(t, unix.Ftruncate(good, 0), unix.EPERM, "from now on it cannot shrink under the daemon")
	require.NoError(t, ok.Close())
}

// TestHostileRing: a client that writes what it likes into its rings, all the time, gets nothing but errors.
func TestHostileRing(t *testing.T) {
	m := sharetest.New(t, 128*mib, 16*mib)
	data := bytes.Repeat([]byte{0x5a}, 4*mib)
	f := m.Write("file", data)
	ro := m.Open("file", os.O_RDONLY)
	for seed := range uint64(6) {
		c := dialRing(t, ro, 2*mib, 64)
		require.EqualValues(t, 1, c.file.Access)
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 3000 {
			for range 8 {
				at := 4096 + rng.IntN(64)*wire.SubmissionSize
				s := wire.Submission{Data: rng.Uint64(), Op: wire.Op(rng.IntN(5)), File: c.file.Handle + uint32(rng.IntN(2)), Memory: c.memory.Handle + uint32(rng.IntN(2)),
					FileOff: rng.Uint64() >> rng.IntN(64), MemOff: rng.Uint64() >> rng.IntN(64), Len: rng.Uint64() >> rng.IntN(64)}
				wire.EncodeSubmission(c.rings.Bytes()[at:], &s)
			}
			tail := c.rings.Word32(0)
			switch rng.IntN(400) {
			case 0:
				tail.Store(rng.Uint32()) // impossible
			case 1:
				c.rings.Word32(192).Store(rng.Uint32())
			default:
				tail.Add(uint32(rng.IntN(8)))
				c.rings.Word32(192).Store(c.rings.Word32(128).Load()) // reaps all
			}
			if rng.IntN(4) == 0 {
				wire.RingDoorbell(c.ends[1])
			}
		}
		if seed%2 == 0 { // handles that are in use go, or the whole client does
			c.SetReadDeadline(time.Now().Add(2 * time.Minute))
			_, err := c.Call(wire.TRelease, 4, &wire.Release{Handle: c.memory.Handle}, nil, 0)
			require.NoError(t, err)
			_, err = c.Call(wire.TRelease, 5, &wire.Release{Handle: c.ring.Handle}, nil, 0)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		settled(t, m, 0)
	}
	works(t, f, data) // the file was open for reading only
}
