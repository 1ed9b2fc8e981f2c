package share_test

import (
	"bytes"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestRingBounds: a transfer of a ring stays within its memory to the byte, and memory that is shared is not read into.
func TestRingBounds(t *testing.T) {
	m := sharetest.New(t, 64*mib, 32*mib)
	data := noise(3, mib)
	f := m.Write("file", data)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	shared, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	own, err := s.Alloc(f, 1)
	require.NoError(t, err)
	ring, err := s.NewRing(8)
	require.NoError(t, err)
	e, _ := own.Export()
	size := e.Size
	for _, c := range []struct {
		op         lanefs.Op
		b          *lanefs.Buffer
		off, at, n int64
		errno      error
		moved      int64
	}{
		{lanefs.OpRead, shared, 0, 0, 1, unix.EACCES, 0},
		{lanefs.OpRead, shared, 0, 0, mib, unix.EACCES, 0},
		{lanefs.OpWrite, shared, 0, 0, mib, nil, mib},
		{lanefs.OpRead, own, 0, 0, size, nil, min(size, mib)},
		{lanefs.OpRead, own, 0, 0, size + 1, unix.EINVAL, 0},
		{lanefs.OpRead, own, 0, 1, size, unix.EINVAL, 0},
		{lanefs.OpRead, own, 0, size - 1, 1, nil, 1},
		{lanefs.OpRead, own, 0, size - 1, 2, unix.EINVAL, 0},
		{lanefs.OpRead, own, 0, size, 0, nil, 0},
		{lanefs.OpRead, own, 0, size + 1, 0, unix.EINVAL, 0},
		{lanefs.OpRead, own, 0, size + 1, -1, unix.EINVAL, 0},
		{lanefs.OpRead, own, 0, 2, -1, unix.EINVAL, 0},
		{lanefs.OpRead, own, math.MaxInt64 / 2, 0, 1, nil, 0},
		{lanefs.OpRead, own, math.MaxInt64/2 + 1, 0, 1, unix.EINVAL, 0},
		{lanefs.OpWrite, own, math.MaxInt64/2 + 1, 0, 0, unix.EINVAL, 0},
		{lanefs.OpWrite, own, math.MaxInt64, 0, 1, unix.EINVAL, 0},
		{lanefs.OpWrite, own, -1, 0, 1, unix.EINVAL, 0},
		{lanefs.OpWrite, own, 0, 0, size + 1, unix.EINVAL, 0},
	} {
		q := &lanefs.Request{Op: c.op, File: file, Buffer: c.b, Off: c.off, MemOff: c.at, Len: c.n}
		require.ErrorIs(t, ring.Do(q), c.errno, "%+v", c)
		require.Equal(t, c.moved, q.N, "%+v", c)
	}
	require.True(t, bytes.Equal(data, shared.Bytes()))
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got), "which was written of itself")
}

// TestRefused: what is refused, and why; and that it leaves nothing: no charge, no descriptor, no memory, no number on the notice board.
func TestRefused(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", noise(3, mib))
	elsewhere, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer elsewhere.Close()
	require.NoError(t, elsewhere.Truncate(mib))
	memfd := newMemfd(t, mib)
	c := dial(t, f)
	rights := hello(t, c)
	defer wire.CloseAll(rights)
	board, err := wire.MapShared(rights[0], 8*wire.Slots, false)
	require.NoError(t, err)
	defer board.Close()
	rw, ro, wo, app := int(f.Fd()), int(m.Open("file", os.O_RDONLY).Fd()), int(m.Open("file", os.O_WRONLY).Fd()), int(m.Open("file", os.O_WRONLY|os.O_APPEND).Fd())
	dir, other := int(m.Open(".", os.O_RDONLY).Fd()), int(elsewhere.Fd())
	var own wire.MapReply
	got, err := c.Call(wire.TMap, 1, &wire.Map{Len: mib, Flags: wire.MapPrivate | wire.MapEmpty}, &own, 1, rw)
	require.NoError(t, err)
	wire.CloseAll(got)
	var ring wire.RingReply
	got, err = c.Call(wire.TRing, 1, &wire.Ring{Entries: 8}, &ring, 3)
	require.NoError(t, err)
	wire.CloseAll(got)
	var file wire.OpenReply
	_, err = c.Call(wire.TOpen, 1, &wire.Open{}, &file, 0, rw)
	require.NoError(t, err)
	require.Equal(t, wire.OpenReply{Handle: file.Handle, Access: 3, Size: mib}, file)

	usage := func() []any {
		all := []any{m.Pool.Stats().Used}
		for _, u := range m.Share.Usage() {
			u.Refused = 0
			all = append(all, u)
		}
		return all
	}
	had, before := usage(), descriptors(t)
	const private, empty = wire.MapPrivate, wire.MapPrivate | wire.MapEmpty
	register := func(size, off uint64) *wire.Register {
		return &wire.Register{Kind: uint32(gpu.ExportMemFD), Size: size, FDOff: off}
	}
	for i, q := range []struct {
		kind  wire.Type
		body  any
		reply any
		fd    int // -1: none
		errno unix.Errno
	}{
		{wire.TMap, &wire.Map{}, &wire.MapReply{}, other, unix.EXDEV},
		{wire.TMap, &wire.Map{}, &wire.MapReply{}, memfd, unix.EXDEV},
		{wire.TMap, &wire.Map{}, &wire.MapReply{}, dir, unix.EINVAL},
		{wire.TMap, &wire.Map{}, &wire.MapReply{}, wo, unix.EACCES},
		{wire.TMap, &wire.Map{Flags: private}, &wire.MapReply{}, ro, unix.EACCES},
		{wire.TMap, &wire.Map{Flags: private}, &wire.MapReply{}, wo, unix.EACCES},
		{wire.TMap, &wire.Map{Len: 1, Flags: empty}, &wire.MapReply{}, ro, unix.EACCES},
		{wire.TMap, &wire.Map{Len: 1, Flags: empty}, &wire.MapReply{}, app, unix.EACCES},
		{wire.TMap, &wire.Map{Len: 1, Flags: wire.MapEmpty}, &wire.MapReply{}, rw, unix.EINVAL},
		{wire.TMap, &wire.Map{Len: 1, Flags: 1 << 20}, &wire.MapReply{}, rw, unix.EINVAL},
		{wire.TMap, &wire.Map{Off: mib}, &wire.MapReply{}, rw, unix.EINVAL},
		{wire.TMap, &wire.Map{Len: 32 * mib, Flags: empty}, &wire.MapReply{}, rw, unix.ENOMEM},
		{wire.TMap, &wire.Map{}, &wire.MapReply{}, -1, unix.EPROTO},
		{wire.TOpen, &wire.Open{}, &wire.OpenReply{}, other, unix.EXDEV},
		{wire.TOpen, &wire.Open{}, &wire.OpenReply{}, dir, unix.EINVAL},
		{wire.TPin, &wire.Pin{On: 1, Owner: wire.NoOwner}, &wire.PinReply{}, other, unix.EXDEV},
		{wire.TPin, &wire.Pin{On: 1, Owner: wire.NoOwner}, &wire.PinReply{}, wo, unix.EACCES},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, Len: 1}, &wire.CommitReply{}, ro, unix.EACCES},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, Len: 1}, &wire.CommitReply{}, app, unix.EACCES},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, Len: 1}, &wire.CommitReply{}, other, unix.EXDEV},
		{wire.TCommit, &wire.Commit{Handle: file.Handle, Len: 1}, &wire.CommitReply{}, rw, unix.EBADF},
		{wire.TCommit, &wire.Commit{Handle: ring.Handle, Len: 1}, &wire.CommitReply{}, rw, unix.EBADF},
		{wire.TCommit, &wire.Commit{Handle: 999, Len: 1}, &wire.CommitReply{}, rw, unix.EBADF},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, Len: own.MemSize + 1}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, MemOff: own.MemSize + 1}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, MemOff: 2, Len: math.MaxUint64}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, MemOff: math.MaxUint64, Len: 2}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, FileOff: math.MaxInt64/2 + 1, Len: 1}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TCommit, &wire.Commit{Handle: own.Handle, FileOff: math.MaxUint64, Len: 1}, &wire.CommitReply{}, rw, unix.EINVAL},
		{wire.TRegister, register(0, 0), &wire.RegisterReply{}, memfd, unix.EINVAL},
		{wire.TRegister, register(1<<46+4096, 0), &wire.RegisterReply{}, memfd, unix.EINVAL},
		{wire.TRegister, register(1<<45+4096, 0), &wire.RegisterReply{}, memfd, unix.ENOMEM},
		{wire.TRegister, register(4096, 1<<46+4096), &wire.RegisterReply{}, memfd, unix.EINVAL},
		{wire.TRegister, register(4096, 1<<46), &wire.RegisterReply{}, memfd, unix.EINVAL},
		{wire.TRegister, register(2*mib, 0), &wire.RegisterReply{}, memfd, unix.EINVAL},
		{wire.TRegister, register(mib, 0), &wire.RegisterReply{}, other, unix.EINVAL},
		{wire.TRegister, register(mib, 0), &wire.RegisterReply{}, rw, unix.EINVAL},
		{wire.TRing, &wire.Ring{}, &wire.RingReply{}, -1, unix.EINVAL},
		{wire.TRing, &wire.Ring{Entries: 3}, &wire.RingReply{}, -1, unix.EINVAL},
		{wire.TRing, &wire.Ring{Entries: 2 * wire.MaxEntries}, &wire.RingReply{}, -1, unix.EINVAL},
		{wire.TRing, &wire.Ring{Entries: 1 << 31}, &wire.RingReply{}, -1, unix.EINVAL},
		{wire.TRelease, &wire.Release{}, nil, -1, unix.EBADF},
		{wire.TRelease, &wire.Release{Handle: math.MaxUint32}, nil, -1, unix.EBADF},
		{wire.TDevice, &wire.Device{}, &wire.DeviceReply{}, -1, unix.EBUSY},
		{wire.Type(77), &wire.Moved{}, &wire.MovedReply{}, -1, unix.EOPNOTSUPP},
	} {
		var fds []int
		if q.fd >= 0 {
			fds = append(fds, q.fd)
		}
		got, err := c.Call(q.kind, uint32(i), q.body, q.reply, 0, fds...)
		wire.CloseAll(got)
		require.ErrorIs(t, err, q.errno, "%d: %+v", i, q)
		require.Equal(t, had, usage(), "%d: %+v", i, q)
	}
	for i := range wire.Slots {
		require.Zero(t, board.Word(8*i).Load())
	}
	var shared wire.MapReply
	got, err = c.Call(wire.TMap, 1, &wire.Map{}, &shared, 1, rw)
	require.NoError(t, err)
	wire.CloseAll(got)
	require.Equal(t, shared.Generation, board.Word(8*int(shared.Handle)).Load())
	_, err = c.Call(wire.TRelease, 1, &wire.Release{Handle: shared.Handle}, nil, 0)
	require.NoError(t, err)
	require.Zero(t, board.Word(8*int(shared.Handle)).Load(), "what was released has no generation")
	require.LessOrEqual(t, descriptors(t), before+slack, "descriptors leak")
	var done wire.CommitReply
	_, err = c.Call(wire.TCommit, 1, &wire.Commit{Handle: own.Handle, MemOff: own.MemSize - 1, Len: 1}, &done, 0, rw)
	require.NoError(t, err)
	require.EqualValues(t, 1, done.Written)
}

// TestFilesGo: of a file that programs have mapped, pinned, read, written and committed nothing keeps the blocks when it is removed and they have let it go.
func TestFilesGo(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	free := func() uint64 {
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(m.Dir, &st))
		return st.Bfree
	}
	m.Write("first", []byte("x")).Close() // a block of the directory's, and what else comes once
	f := m.Write("file", noise(3, mib))
	s := connect(t, f)
	uses := map[string]func(f *os.File) error{
		"map":     func(f *os.File) error { b, err := s.Map(f, 0, 0); require.NoError(t, err); return b.Close() },
		"no map":  func(f *os.File) error { _, err := s.Map(f, 1<<40, 1); require.Error(t, err); return nil },
		"private": func(f *os.File) error { b, err := s.MapPrivate(f, 0, 0); require.NoError(t, err); return b.Close() },
		"commit": func(f *os.File) error {
			b, err := s.Alloc(f, 10)
			require.NoError(t, err)
			require.NoError(t, b.Commit(f, 0, 0, 10))
			return b.Close()
		},
		"pin": func(f *os.File) error {
			_, err := s.Pin(f, true, -1)
			require.NoError(t, err)
			_, err = s.Pin(f, false, -1)
			return err
		},
		"no message": func(f *os.File) error { // ends the connection, without a reply
			c := dial(t, f)
			greet(t, c)
			require.NoError(t, c.Send([]byte("x"), int(f.Fd())))
			_, _, _, err := c.Receive()
			require.Error(t, err)
			return nil
		},
		"open": func(f *os.File) error { file, err := s.Open(f); require.NoError(t, err); return file.Close() },
	}
	for name, use := range uses {
		before := free()
		f := m.Write("gone", noise(4, 4*mib))
		require.NoError(t, use(f), name)
		require.NoError(t, os.Remove(f.Name()))
		require.NoError(t, f.Close())
		for end := time.Now().Add(time.Minute); free() < before; time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "%s: %d blocks are free, %d were", name, free(), before)
		}
	}
}
