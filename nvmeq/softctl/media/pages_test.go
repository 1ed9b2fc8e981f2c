package media

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/gputest/smaps"
	"github.com/lanefs/lanefs/gpu/hugepage"
)

// pins is a Pinner that says which chunks it has.
type pins struct {
	err  error         // of Pin
	uses bool          // what it has not pinned, for ever
	held chan struct{} // Pin waits until it is closed, if there is one
	mu   sync.Mutex
	all  map[*byte]bool // protected by mu
}

func (p *pins) Pin(b []byte, then func()) error {
	if p.held != nil {
		<-p.held
	}
	if p.err != nil {
		if !p.uses {
			then()
		}
		return p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[&b[0]] = true
	return nil
}

func (p *pins) Unpin(b []byte, then func()) {
	p.mu.Lock()
	delete(p.all, &b[0])
	p.mu.Unlock()
	then()
}

// count is how many are pinned.
func (p *pins) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// reader reads an image of two chunks and a bit as a controller does, from views where there are any, and holds every read against what
// should be there.
type reader struct {
	t    *testing.T
	m    *Image
	want []byte // the image
}

func newReader(t *testing.T, p Pinner) *reader {
	const size = 2*chunkSize + ReadStep
	path := filepath.Join(t.TempDir(), "image")
	r := &reader{t: t, want: make([]byte, size)}
	random(8, r.want[:ReadStep])
	for off := ReadStep; off < size; off += 512 { // no two blocks are the same
		copy(r.want[off:off+512], r.want[off-ReadStep:])
		r.want[off] += byte(off / ReadStep)
	}
	require.NoError(t, os.WriteFile(path, r.want, 0o600))
	var err error
	r.m, err = Open(path, Options{BlockSize: 512, Pinner: p, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	return r
}

// read reads a range, and returns when no chunk is being pinned.
func (r *reader) read(off, n int64) {
	r.t.Helper()
	for end := off + n; off < end; {
		c, b := r.m.View(off, end-off, true)
		if c != nil {
			require.True(r.t, bytes.Equal(r.want[off:off+int64(len(b))], b), "the view of %d bytes at %d", len(b), off)
			c.Release()
		} else {
			b = make([]byte, min(ReadStep, end-off))
			r.m.Missed(off, int64(len(b)))
			require.NoError(r.t, r.m.Read(buffers(b), off))
			require.True(r.t, bytes.Equal(r.want[off:off+int64(len(b))], b), "%d bytes at %d", len(b), off)
		}
		off += int64(len(b))
	}
	r.m.pages.pinners.Wait()
}

func (r *reader) pass() {
	r.t.Helper()
	for off := int64(0); off < int64(len(r.want)); off += ReadStep {
		r.read(off, ReadStep)
	}
}

func buffers(all ...[]byte) *Buffers {
	var b Buffers
	for _, p := range all {
		b.Add(p)
	}
	return &b
}

// While a chunk is being pinned, or waits for its turn, nobody else asks for it, however much is read.
func TestPinOnce(t *testing.T) {
	p := &pins{all: map[*byte]bool{}, held: make(chan struct{})}
	r := newReader(t, p)
	defer r.m.Close()
	before := runtime.NumGoroutine()
	for range 20 {
		for off := int64(0); off < 2*chunkSize; off += ReadStep {
			r.m.Missed(off, ReadStep)
		}
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before+2)
	close(p.held)
	r.pass()
	require.Equal(t, 2, p.count())
	clear(r.want[:4096])
	require.NoError(t, r.m.Zero(0, 4096, false, 0)) // the chunk is let go of, and asked for anew
	require.Equal(t, 1, p.count())
	r.pass()
	r.pass()
	require.Equal(t, 2, p.count())
}

// TestPinHangs: while a GPU's driver does not answer who pins a chunk, its bytes are read, written and zeroed; they are in the pages that are pinned in the end.
func TestPinHangs(t *testing.T) {
	was := lockPatience
	lockPatience = 10 * time.Millisecond
	defer func() { lockPatience = was }()
	p := &pins{all: map[*byte]bool{}, held: make(chan struct{})}
	r := newReader(t, p)
	for range 2 {
		for off := int64(0); off < 2*chunkSize; off += ReadStep {
			r.m.Missed(off, ReadStep)
		}
	}
	for i := range r.m.pages.chunks {
		require.Eventually(t, func() bool {
			is := !r.m.pages.chunks[i].mu.TryLock()
			if !is {
				r.m.pages.chunks[i].mu.Unlock()
			}
			return is
		}, time.Minute, time.Millisecond, "it is being pinned")
	}
	for n := range int64(20) {
		off := chunkSize - 4096 + n*512
		clear(r.want[off : off+8192])
		require.NoError(t, r.m.Zero(off, 8192, n%2 == 0, 0))
	}
	b := make([]byte, 4*4096)
	require.NoError(t, r.m.Read(buffers(b), chunkSize-8192))
	require.True(t, bytes.Equal(r.want[chunkSize-8192:chunkSize+8192], b))
	close(p.held)
	r.m.pages.pinners.Wait()
	require.Equal(t, 2, p.count())
	r.pass()
	require.Eventually(t, func() bool { return !r.m.pages.chunks[0].stuck.Load() && !r.m.pages.chunks[1].stuck.Load() }, time.Minute, time.Millisecond)
	require.NoError(t, r.m.Zero(0, 4096, false, 0))
	require.Equal(t, 1, p.count(), "it is let go of")
	require.NoError(t, r.m.Close())
}

// What is read a second time comes from the image's own pages, and is what is in the image whatever happens to it.
func TestPages(t *testing.T) {
	p := &pins{all: map[*byte]bool{}}
	r := newReader(t, p)
	r.pass()
	require.Zero(t, p.count(), "read once")
	r.pass()
	require.Equal(t, 2, p.count(), "each whole chunk")
	require.EqualValues(t, 2*chunkSize, r.m.Pinned())
	r.pass()
	r.read(chunkSize-512*7, 8192) // from one chunk into the next
	r.read(2*chunkSize-4096, ReadStep)
	r.read(512*3, 512)

	// Written.
	b := random(9, make([]byte, 4096))
	copy(r.want[chunkSize+4096:], b)
	require.NoError(t, r.m.Write(buffers(b), chunkSize+4096, false, 0))
	r.read(chunkSize, ReadStep)
	require.Equal(t, 2, p.count())

	// Taken out of the file, in both chunks, and written anew.
	from, n := int64(chunkSize-8192), int64(16384)
	clear(r.want[from : from+n])
	require.NoError(t, r.m.Zero(from, n, false, 0))
	require.Zero(t, p.count())
	r.read(from, n)
	for i := range int64(2) {
		copy(r.want[from+i*4096:], b)
		require.NoError(t, r.m.Write(buffers(b[:1000], b[1000:]), from+i*4096, false, 0))
	}
	r.pass()
	r.pass()
	require.Equal(t, 2, p.count(), "the whole first chunk, and of the other what follows its hole, which pinning would fill")
	require.EqualValues(t, 2*chunkSize-8192, r.m.Pinned())
	require.Less(t, r.m.Allocated(), int64(len(r.want)))
	r.read(chunkSize, 16384) // from the hole into what is pinned
	require.EqualValues(t, 2*chunkSize-8192, r.m.Pinned())

	// The hole is filled, and what is there now is read so often that it is pinned, too.
	for i := range int64(2) {
		copy(r.want[chunkSize+i*4096:], b)
		require.NoError(t, r.m.Write(buffers(b), chunkSize+i*4096, false, 0))
	}
	for range chunkSize/4096 + 1 {
		r.read(chunkSize, 4096)
	}
	require.EqualValues(t, 2*chunkSize, r.m.Pinned())
	r.pass()
	require.NoError(t, r.m.Close())
	require.Zero(t, p.count())
}

// Where no pages can be pinned, or no more, views give nothing.
// TestHugePages holds that what is pinned of a file on a tmpfs is in huge pages, that holes stay holes, and that the bytes are what they were.
func TestHugePages(t *testing.T) {
	if hugepage.Size() == 0 || room("/proc/self/cgroup", "/sys/fs/cgroup")/4 < chunkSize {
		t.Skip("SKIPPED: no huge pages, or too little memory for them")
	}
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skip("SKIPPED: /dev/shm is no tmpfs")
	}
	t.Setenv("TMPDIR", "/dev/shm")
	r := newReader(t, &pins{all: map[*byte]bool{}})
	defer r.m.Close()
	const hole, end = 5<<20 + 4096, 6 << 20 // in the third huge page
	require.NoError(t, unix.Fallocate(r.m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole, end-hole))
	clear(r.want[hole:end])
	blocks := func() int64 {
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(r.m.fd, &st))
		return st.Blocks
	}
	had := blocks()
	r.read(0, int64(len(r.want)))
	r.read(0, 2*chunkSize)
	r.read(0, int64(len(r.want)))
	require.Equal(t, int64(2*chunkSize-(end-hole)), r.m.Pinned())
	require.Equal(t, had, blocks(), "a hole was filled")
	huge := hugeOf(t, r.m.path)
	if huge == 0 {
		t.Skip("SKIPPED: this kernel makes no huge pages of a tmpfs")
	}
	require.Equal(t, int64(2*chunkSize)-hugepage.Size(), huge, "all but the one with the hole")
}

// hugeOf is how many bytes of a file this process maps by huge pages.
func hugeOf(t *testing.T, path string) (bytes int64) {
	for _, m := range smaps.All(t) {
		if strings.HasSuffix(m.Path, path) {
			bytes += m.Huge(t)
		}
	}
	return bytes
}

func TestPagesRefused(t *testing.T) {
	for _, uses := range []bool{false, true} {
		r := newReader(t, &pins{all: map[*byte]bool{}, err: errors.New("no"), uses: uses})
		for range 3 {
			r.pass()
		}
		require.True(t, r.m.pages.refuse.Load())
		require.Zero(t, r.m.Pinned())
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(r.m.fd))
		require.NoError(t, err)
		require.NoError(t, r.m.Close())
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		require.Equal(t, uses, bytes.Contains(maps, []byte(name)), "what may be used yet stays mapped")
	}

	p := &pins{all: map[*byte]bool{}}
	r := newReader(t, p)
	pages := r.m.pages
	pages.limit = chunkSize
	for range 3 {
		r.pass()
	}
	require.Equal(t, 1, p.count(), "room for one")
	require.NotEmpty(t, pages.chunks[0].pinned)
	pages.chunks[0].used.Add(-chunkStale)
	for range 3 {
		r.read(chunkSize, ReadStep)
		pages.chunks[1].read.Add(chunkSize)
	}
	require.Equal(t, 1, p.count())
	require.NotEmpty(t, pages.chunks[1].pinned, "it takes the room of one that is not read")
	require.InDelta(t, seconds(), pages.chunks[1].used.Load(), chunkStale/2, "by a clock that nobody sets")
	r.pass()
	require.NoError(t, r.m.Close())
}

// Without a Pinner there are no views, and a file of the wrong length is refused.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o600))
	m, err := Open(path, Options{BlockSize: 4096, Log: slog.Default()})
	require.NoError(t, err)
	require.EqualValues(t, 4096, m.Size())
	require.Zero(t, m.ViewSize())
	c, b := m.View(0, 4096, true)
	require.Nil(t, c)
	require.Nil(t, b)
	require.NoError(t, m.Failed())
	require.NoError(t, m.Close())
	require.NoError(t, unix.Truncate(path, 4095))
	_, err = Open(path, Options{BlockSize: 4096, Log: slog.Default()})
	require.ErrorContains(t, err, "less than one block of 4096")
}

// A view whose pages have gone from the file is no reason to die.
func TestCopyView(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	defer f.Close()
	want := make([]byte, 1<<20)
	random(5, want)
	_, err = f.Write(want)
	require.NoError(t, err)
	view, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(view)) }()
	got := make([]byte, len(want))
	var b Buffers
	b.Add(got[:5])
	b.Add(got[5:])
	require.True(t, CopyView(&b, view))
	require.Equal(t, want, got)
	require.Zero(t, testing.AllocsPerRun(10, func() { CopyView(&b, view) }))
	require.NoError(t, f.Truncate(1<<19))
	require.False(t, CopyView(&b, view))
	require.True(t, CopyView(&b, want), "the goroutine is as it was")
}
