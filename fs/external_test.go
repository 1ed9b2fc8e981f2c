package fs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// memory is a transfer's target in pinned memory.
type memory struct{ blockdev.Buffer }

func (m memory) Put(off int, p []byte) error { copy(m.Bytes()[off:], p); return nil }
func (m memory) Get(off int, p []byte) error { copy(p, m.Bytes()[off:]); return nil }
func (m memory) Zero(off, n int) error       { clear(m.Bytes()[off : off+n]); return nil }

// TestExternalSeesDirtyPages: a read without the kernel returns the bytes written last, also by a program that opened the file
// after the kernel had forgotten it.
func TestExternalSeesDirtyPages(t *testing.T) {
	m := newHandled(t, Options{WriteBack: true})
	path := m.path("file")
	write(t, path, "what was there")
	f, err := os.Open(path)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	ext, err := m.srv.External(st.Ino, st.Mode, os.O_RDONLY)
	require.NoError(t, err)
	defer ext.Close()
	require.NoError(t, f.Close())
	m.forgotten(uint64(ext.Ino()))

	f, err = os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("what is new now"), 0)
	require.NoError(t, err)
	buf, err := m.dev.Alloc(4096)
	require.NoError(t, err)
	defer buf.Release()
	ts := []ext4.Transfer{{N: 4096, Mem: memory{buf}}}
	ext.Read(ts)
	require.NoError(t, ts[0].Err)
	require.Equal(t, "what is new now", string(buf.Bytes()[:ts[0].Done]))
}

// externalWriter is a file of a mount, open to be written without the kernel, from n bytes of memory.
func externalWriter(t *testing.T, m *mounted, path string, n int) (*External, memory) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	ext, err := m.srv.External(st.Ino, st.Mode, os.O_RDWR)
	require.NoError(t, err)
	t.Cleanup(ext.Close)
	buf, err := m.dev.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(buf.Release)
	return ext, memory{buf}
}

// TestExternalWrites: what was written without the kernel is what the next read(2) returns, whatever the kernel has cached: pages of the range
// are dropped one by one, and when that has been done often enough, all pages of the file; a file of which the kernel has no pages
// needs no notice. What a memory map has made dirty before is not written over the new bytes, and is not lost elsewhere.
func TestExternalWrites(t *testing.T) {
	const size, block = 1 << 20, 4096
	m := newMount(t, Options{})
	want := make([]byte, size)
	path := m.path("file")
	write(t, path, string(want))
	ext, mem := externalWriter(t, m, path, 16*block)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	got := make([]byte, size)
	same := func(what string, round int) {
		t.Helper()
		_, err := f.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%s, round %d", what, round)
	}
	put := func(ts ...ext4.Transfer) {
		t.Helper()
		for i := range ts {
			ts[i].Mem = mem
			copy(want[ts[i].Off:], mem.Bytes()[ts[i].At:ts[i].At+ts[i].N])
		}
		ext.WriteAll(ts)
		for i := range ts {
			require.NoError(t, ts[i].Err)
			require.Equal(t, ts[i].N, ts[i].Done)
		}
	}
	n := m.srv.nodes.get(uint64(ext.Ino()))
	require.NotNil(t, n)
	all := 0 // how often all pages were dropped
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 150 {
		for i := range mem.Bytes() {
			mem.Bytes()[i] = byte(rng.Uint32())
		}
		var ts []ext4.Transfer
		for i, at := range rng.Perm(size / block)[:1+rng.IntN(15)] {
			ts = append(ts, ext4.Transfer{Off: int64(at) * block, N: block, At: i * block})
		}
		told := n.told.Load()
		put(ts...)
		if n.told.Load() < told {
			all++
		}
		if round%3 > 0 { // so that notices add up: it happens before a write, too
			same("written", round)
		}
	}
	require.NotZero(t, all, "all pages were never dropped")

	// The later one of two that overlap stays.
	put(ext4.Transfer{Off: 5 * block, N: 4 * block, At: 0}, ext4.Transfer{Off: 2 * block, N: 4 * block, At: 4 * block}, ext4.Transfer{Off: 5*block + 9, N: 3, At: 9 * block})
	same("overlapping", 0)

	// In a child, as in TestMmap: even the end of a mapping waits for its pages to be written, with all memory of its process locked.
	child := helper(t, "increment", path, strconv.Itoa(size))
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	defer func() {
		require.NoError(t, in.Close())
		require.NoError(t, child.Wait())
	}()
	mapped := func(increment ...int) []byte {
		t.Helper()
		_, err := fmt.Fprintln(in, strings.Trim(fmt.Sprint(increment), "[]"))
		require.NoError(t, err)
		_, err = io.ReadFull(out, got)
		require.NoError(t, err)
		return got
	}
	for round := range 40 {
		var at []int
		for _, b := range rng.Perm(size / block)[:8] {
			at = append(at, b*block+round)
			want[b*block+round]++
		}
		require.True(t, bytes.Equal(want, mapped(at...)), "changed by the memory map, round %d", round)
		put(ext4.Transfer{Off: int64(round) * block, N: 8 * block, At: round % 3 * block})
		same("memory map", round)
		require.True(t, bytes.Equal(want, mapped()), "memory map, round %d", round)
	}
}

// incrementHelper maps a file. For each line of offsets it increments the bytes there, and prints all that are mapped.
func incrementHelper(args []string) {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		die("%v", err)
	}
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		die("%v", err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		die("mmap: %v", err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for _, word := range strings.Fields(lines.Text()) {
			at, err := strconv.Atoi(word)
			if err != nil {
				die("%v", err)
			}
			p[at]++
		}
		if _, err := os.Stdout.Write(p); err != nil {
			die("%v", err)
		}
	}
	if err := unix.Munmap(p); err != nil {
		die("munmap: %v", err)
	}
}

// TestExternalWritesUnread: a file that the kernel has no pages of is written without telling the kernel.
func TestExternalWritesUnread(t *testing.T) {
	m := newMount(t, Options{})
	path := m.path("file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 1<<20))
	ext, mem := externalWriter(t, m, path, 4096)
	f, err := os.OpenFile(path, os.O_RDWR, 0) // so that its node is loaded
	require.NoError(t, err)
	defer f.Close()
	n := m.srv.nodes.get(uint64(ext.Ino()))
	for i := range 8 {
		copy(mem.Bytes(), "new")
		ts := []ext4.Transfer{{Off: int64(i) << 13, N: 4096, Mem: mem}}
		ext.WriteAll(ts)
		require.NoError(t, ts[0].Err)
	}
	require.Zero(t, n.told.Load())
	for _, end := range []int64{2 << 20, 2<<20 + 4096} { // the kernel asks for size and times again
		before, err := f.Stat()
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		ts := []ext4.Transfer{{Off: end - 4096, N: 4096, Mem: mem}}
		ext.WriteAll(ts)
		require.NoError(t, ts[0].Err)
		after, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, end, after.Size())
		require.True(t, after.ModTime().After(before.ModTime()))
	}
	require.Zero(t, n.told.Load())
	got := make([]byte, 3)
	_, err = f.ReadAt(got, 7<<13)
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	copy(mem.Bytes(), "now")
	ext.WriteAll([]ext4.Transfer{{Off: 7 << 13, N: 4096, Mem: mem}})
	require.NotZero(t, n.told.Load())
	_, err = f.ReadAt(got, 7<<13)
	require.NoError(t, err)
	require.Equal(t, "now", string(got))
}

// TestExternalWritesBesideReads: a read(2) that begins after a write without the kernel has ended returns its bytes, or later ones, while
// other readers have the kernel cache the same pages.
func TestExternalWritesBesideReads(t *testing.T) {
	const size, block = 64 << 10, 4096
	m := newMount(t, Options{})
	path := m.path("file")
	write(t, path, string(make([]byte, size)))
	ext, mem := externalWriter(t, m, path, size)
	var version atomic.Uint64 // all blocks have at least this
	var stop atomic.Bool
	var wg sync.WaitGroup
	for r := range 3 {
		wg.Go(func() {
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			var got [8]byte
			for k := r; !stop.Load(); k++ {
				least := version.Load()
				if _, err := f.ReadAt(got[:], int64(k*7%(size/block)*block)); err != nil {
					t.Error(err)
					return
				}
				if have := binary.LittleEndian.Uint64(got[:]); have < least {
					t.Errorf("version %d was read after version %d was there", have, least)
					return
				}
			}
		})
	}
	for v, end := uint64(1), time.Now().Add(time.Second); time.Now().Before(end) && !t.Failed(); v++ {
		var ts []ext4.Transfer
		for at := 0; at < size; at += block {
			binary.LittleEndian.PutUint64(mem.Bytes()[at:], v)
			if v%4 == 0 || at/block%2 == int(v%2) { // else half of the blocks, so that there are many ranges
				ts = append(ts, ext4.Transfer{Off: int64(at), N: block, Mem: mem, At: at})
			}
		}
		ext.WriteAll(ts)
		if v%4 == 0 {
			version.Store(v)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestExternalWriteSync: a write to a file with chattr +S is on the medium when it has ended.
func TestExternalWriteSync(t *testing.T) {
	m := newMount(t, Options{})
	path := m.path("file")
	write(t, path, string(make([]byte, 8192)))
	ext, mem := externalWriter(t, m, path, 4096)
	require.NoError(t, ext.in.Fsync(false))
	flushes := 0
	m.dev.Observe(func(e blockdev.Event) {
		if e.Op == blockdev.OpFlush {
			flushes++
		}
	})
	defer m.dev.Observe(nil)
	ext.WriteAll([]ext4.Transfer{{N: 4096, Mem: mem}})
	require.Zero(t, flushes)
	require.NoError(t, ext.in.SetFlags(ext.in.Flags()|ext4.FlagSync))
	flushes = 0
	ext.WriteAll([]ext4.Transfer{{N: 4096, Mem: mem}})
	require.NotZero(t, flushes)
}

// TestExternalEnded: of a mount that was aborted the kernel still reads the pages that it has, and nobody can tell it to drop them. So what is written then without the kernel
// is no success.
func TestExternalEnded(t *testing.T) {
	m := newMount(t, Options{})
	path := m.path("file")
	write(t, path, "what was there")
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	got := make([]byte, len("what was there"))
	_, err = f.ReadAt(got, 0)
	require.NoError(t, err)
	ext, mem := externalWriter(t, m, path, 4096)
	ts := []ext4.Transfer{{N: len(got), Mem: mem}}
	ext.WriteAll(ts)
	require.NoError(t, ts[0].Err)
	_ = unix.Unmount(m.dir, unix.MNT_FORCE) // aborts, and unmounts nothing that is in use
	m.srv.Wait()
	ext.WriteAll(ts)
	require.ErrorIs(t, ts[0].Err, unix.ESHUTDOWN)
	require.Zero(t, ts[0].Done)
	require.NoError(t, f.Close())
	require.NoError(t, Detach(m.dir))
}
