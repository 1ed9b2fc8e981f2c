package lanefs_test

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/fs/share/wire"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestCoherence: a change of the bytes of a range is seen by all clients with a hold as soon as the operation has returned,
// a new request gets the new bytes, and the old buffer keeps its own. What does not touch the range changes nothing.
func TestCoherence(t *testing.T) {
	m := sharetest.New(t, 256*mib, 128*mib)
	size := int64(6 * mib)
	pagesOf := func(f *os.File, n int64) []byte {
		b, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		return b
	}
	rename := func(f *os.File) error {
		if err := os.WriteFile(f.Name()+".new", random(9, int(size)), 0o644); err != nil {
			return err
		}
		return os.Rename(f.Name()+".new", f.Name())
	}
	for name, c := range map[string]struct {
		off, n  int64 // of the buffer; n 0: to the end
		do      func(f *os.File) error
		touches bool
		ends    bool // the name leads to other bytes, or nowhere
	}{
		"write":            {0, 0, func(f *os.File) error { _, err := f.WriteAt([]byte("new"), 3*mib); return err }, true, false},
		"write beside":     {0, mib, func(f *os.File) error { _, err := f.WriteAt([]byte("new"), mib); return err }, false, false},
		"write before":     {mib, mib, func(f *os.File) error { _, err := f.WriteAt(make([]byte, mib), 0); return err }, false, false},
		"append":           {0, 0, func(f *os.File) error { _, err := f.WriteAt([]byte("more"), size); return err }, true, false},
		"append to a part": {0, mib, func(f *os.File) error { _, err := f.WriteAt([]byte("more"), size); return err }, false, false},
		"shrink":           {0, 0, func(f *os.File) error { return f.Truncate(size - 1) }, true, false},
		"shrink behind":    {0, mib, func(f *os.File) error { return f.Truncate(mib) }, false, false},
		"grow":             {0, 0, func(f *os.File) error { return f.Truncate(size + 1) }, true, false},
		"punch": {mib, mib, func(f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, mib, 4096)
		}, true, false},
		"punch beside": {mib, mib, func(f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, mib)
		}, false, false},
		"zero":         {mib, mib, func(f *os.File) error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, mib, 4096) }, true, false},
		"direct write": {0, 0, directWrite, true, false},
		"memory map, msync": {0, 0, func(f *os.File) error {
			b := pagesOf(f, size)
			b[5] ^= 1
			err := unix.Msync(b, unix.MS_SYNC)
			unix.Munmap(b)
			return err
		}, true, false},
		"copy": {0, 0, func(f *os.File) error {
			in, err := os.Open(f.Name())
			if err != nil {
				return err
			}
			defer in.Close()
			from, to := int64(0), int64(4*mib)
			_, err = unix.CopyFileRange(int(in.Fd()), &from, int(f.Fd()), &to, mib, 0)
			return err
		}, true, false},
		"open to truncate": {0, 0, func(f *os.File) error { return os.WriteFile(f.Name(), []byte("short"), 0o644) }, true, false},
		"unlink":           {0, 0, func(f *os.File) error { return os.Remove(f.Name()) }, true, true},
		"rename over":      {0, 0, rename, true, true},
		"unlink one of two": {0, 0, func(f *os.File) error {
			if err := os.Link(f.Name(), f.Name()+".too"); err != nil {
				return err
			}
			return os.Remove(f.Name())
		}, false, true},
		"chmod": {0, 0, func(f *os.File) error { return f.Chmod(0o600) }, false, false},
		"read":  {0, 0, func(f *os.File) error { _, err := os.ReadFile(f.Name()); return err }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			data := random(7, int(size))
			f := m.Write("file of "+name, data)
			s := connect(t, f)
			b, err := s.Map(f, c.off, c.n)
			require.NoError(t, err)
			old := append([]byte{}, b.Bytes()...)
			was := b.Generation()
			require.True(t, b.Current())
			require.NoError(t, c.do(f))
			require.Equal(t, c.touches, !b.Current())
			if c.touches {
				require.NoError(t, s.Wait(time.Minute), "the event")
				require.Greater(t, b.Latest(), was)
			}
			require.True(t, bytes.Equal(old, b.Bytes()), "the old buffer keeps its snapshot")
			if c.ends {
				return
			}
			want, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			if c.off >= int64(len(want)) {
				return
			}
			again, err := s.Map(f, c.off, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[c.off:], again.Bytes()), "a new request gets the new bytes")
			require.True(t, again.Current())
			require.NoError(t, again.Close())
			require.NoError(t, b.Close())
		})
	}
}

// TestNumberAgain: a mapping that gets the number of an earlier one, whose file has changed, is current all the same.
func TestNumberAgain(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	other, f := m.Write("other", random(8, 4096)), m.Write("file", random(9, 4096))
	s := connect(t, f)
	kept, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	b, err := s.Map(other, 0, 0)
	require.NoError(t, err)
	_, err = other.WriteAt([]byte("x"), 0)
	require.NoError(t, err)
	require.False(t, b.Current())
	require.NoError(t, b.Close())
	const around = 20
	for range wire.Slots - around { // each takes a number, and gives it back
		_, err := s.Alloc(f, 1<<40)
		require.ErrorIs(t, err, unix.ENOMEM)
	}
	for range 2 * around {
		b, err = s.Map(f, 0, 0)
		require.NoError(t, err)
		require.True(t, b.Current())
		require.NoError(t, b.Close())
	}
	require.True(t, kept.Current())
	require.NoError(t, kept.Close())
}

func directWrite(f *os.File) error {
	fd, err := unix.Open(f.Name(), unix.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(b)
	_, err = unix.Pwrite(fd, b, 8192)
	return err
}

// TestDirtyPages: bytes that a program has stored through a memory map and that are not written back are in the buffer.
func TestDirtyPages(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := random(8, 2*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	p, err := unix.Mmap(int(f.Fd()), 0, len(data), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(p)
	for i := 0; i < len(data); i += 4096 {
		p[i]++
		data[i]++
	}
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, b.Bytes()))
}

// TestWriteBack: dirty pages of the write-back cache are in what a ring reads and a program maps, and buffers become stale when they are
// written back.
func TestWriteBack(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib, func(o *fs.Options) { o.WriteBack = true })
	data := random(8, 2*mib)
	f := m.Write("file", data)
	s := connect(t, f)
	old, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	own, err := s.Alloc(f, 4*mib)
	require.NoError(t, err)
	file, err := s.Open(f)
	require.NoError(t, err)
	r, err := s.NewRing(8)
	require.NoError(t, err)
	for i := range 20 {
		more := random(uint64(i), 5000) // and the file grows
		_, err = f.WriteAt(more, int64(len(data)-100))
		require.NoError(t, err)
		data = append(data[:len(data)-100], more...)
		q := &lanefs.Request{Op: lanefs.OpRead, File: file, Buffer: own, Len: 4 * mib}
		require.NoError(t, r.Do(q))
		require.True(t, bytes.Equal(data, own.Bytes()[:q.N]))
		b, err := s.Map(f, 0, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, b.Bytes()))
		require.NoError(t, b.Close())
	}
	require.False(t, old.Current())
	require.NoError(t, r.Close())
}

// TestReusedInode: a new file with a dead one's number is not given the dead one's bytes.
func TestReusedInode(t *testing.T) {
	m := sharetest.New(t, 64*mib, 32*mib)
	var s *lanefs.Session
	seen := map[uint64]bool{}
	reused := false
	// A number is free when the kernel has forgotten the file, which may take a while.
	for i, end := 0, time.Now().Add(2*time.Minute); !reused; i++ {
		require.True(t, time.Now().Before(end), "no number was used again in %d files", i)
		data := random(uint64(20+i), 2*mib)
		require.NoError(t, os.WriteFile(m.Path("file"), data, 0o644))
		f, err := os.OpenFile(m.Path("file"), os.O_RDWR, 0)
		require.NoError(t, err)
		if s == nil {
			s = connect(t, f)
		}
		require.NoError(t, os.Remove(m.Path("file")))
		b, err := s.Map(f, 0, 0) // resident after the last name has gone
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, b.Bytes()))
		require.NoError(t, b.Close())
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(f.Fd()), &st))
		reused = reused || seen[st.Ino]
		seen[st.Ino] = true
		require.NoError(t, f.Close())
	}
}

// TestRacingWriters: blocks that writers change all the time while readers map. A buffer that is current has, for each
// block, bytes of one write, and none older than what was complete before the request.
func TestRacingWriters(t *testing.T) {
	m := sharetest.New(t, 128*mib, 64*mib)
	const block, blocks, rounds = 4096, 512, 150
	f := m.Write("file", make([]byte, block*blocks))
	var done [2]struct {
		sync.Mutex
		n byte
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range done {
		wg.Go(func() {
			b := make([]byte, block*blocks/2) // one, as below: under the race detector new memory takes the most of this test's time
			for n := byte(1); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if n == 250 {
					return
				}
				b[0] = n
				for same := 1; same < len(b); same *= 2 {
					copy(b[same:], b[:same])
				}
				if _, err := f.WriteAt(b, int64(w)*block*blocks/2); err != nil {
					t.Error(err)
					return
				}
				done[w].Lock()
				done[w].n = n
				done[w].Unlock()
			}
		})
	}
	s := connect(t, f)
	current := 0
	var bytesNow []byte
	for range rounds {
		var least [2]byte
		for w := range done {
			done[w].Lock()
			least[w] = done[w].n
			done[w].Unlock()
		}
		b, err := s.Map(f, 0, 0)
		require.NoError(t, err)
		bytesNow = append(bytesNow[:0], b.Bytes()...)
		for k := range blocks {
			first := bytesNow[k*block]
			require.GreaterOrEqual(t, first, least[k*2/blocks], "block %d is older than what was complete before the request", k)
		}
		if b.Current() {
			current++
		}
		require.NoError(t, b.Close())
	}
	close(stop)
	wg.Wait()
	b, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, b.Current())
	want, err := os.ReadFile(m.Path("file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, b.Bytes()), "when the writers have ended the bytes are the file's")
	t.Logf("%d of %d buffers were current when they were looked at", current, rounds)
}
