package ext4_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// extents is how many pieces a file lies in, as filefrag(8) counts them from what debugfs says.
func extents(t *testing.T, img, path string) int {
	t.Helper()
	out, err := exec.Command("debugfs", "-R", "blocks "+path, img).Output()
	require.NoError(t, err)
	n, last := 0, int64(-2)
	for _, f := range strings.Fields(string(out)) {
		b, err := strconv.ParseInt(f, 10, 64)
		require.NoError(t, err)
		if b != last+1 {
			n++
		}
		last = b
	}
	return n
}

// TestContiguous: large files lie in few pieces, also those that are written at the same time a little to each.
func TestContiguous(t *testing.T) {
	img := disktest.Make(t, "512M", "-b", "4096")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	chunk := make([]byte, 1<<20)
	for k := range chunk {
		chunk[k] = byte(k)
	}
	f := create(t, root, "sequential")
	for k := range int64(150) {
		_, err := f.Write(k<<20, chunk)
		require.NoError(t, err)
	}
	f.Put()
	var wg sync.WaitGroup
	for w := range 8 {
		f := create(t, root, fmt.Sprintf("beside%d", w))
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer f.Put()
			for k := range int64(1024) {
				if _, err := f.Write(k<<12, chunk[:4096]); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	require.NoError(t, v.Sync())
	free := v.Statfs().BlocksFree
	root.Put()
	done()
	disktest.Fsck(t, img)
	var st unix.Statfs_t
	disktest.Mount(t, img, "ro", func(dir string) { require.NoError(t, unix.Statfs(dir, &st)) })
	require.Equal(t, st.Bfree, free, "what is kept for files is free all the same")
	// 150 MiB are in two groups at least; 4 MiB in 1,024 appends each beside seven others.
	t.Logf("sequential: %d pieces", extents(t, img, "sequential"))
	require.LessOrEqual(t, extents(t, img, "sequential"), 6)
	for w := range 8 {
		n := extents(t, img, fmt.Sprintf("beside%d", w))
		t.Logf("beside%d: %d pieces", w, n)
		require.LessOrEqual(t, n, 16)
	}
}

// TestDiscard: what is freed is discarded once that is durable, and no more than that.
func TestDiscard(t *testing.T) {
	img := disktest.Make(t, "64M", "-b", "1024")
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	var mu sync.Mutex
	discarded, total := map[blockdev.Bytes]bool{}, int64(0)
	dev.Observe(func(e blockdev.Event) {
		if e.Op != blockdev.OpDiscard {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		total += int64(e.Len)
		for o := e.Off; o < e.Off+e.Len; o += 1024 {
			discarded[o] = true
		}
	})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(discarded)
	}
	v, err := ext4.Open(dev, ext4.Options{Discard: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "f")
	_, err = f.Write(0, make([]byte, 3<<20))
	require.NoError(t, err)
	keep := create(t, root, "keep")
	content := random(rand.New(rand.NewPCG(1, 1)), 1<<20)
	_, err = keep.Write(0, content)
	require.NoError(t, err)
	f.Put()
	require.NoError(t, v.Sync())
	require.Zero(t, count())
	require.NoError(t, root.Unlink("f"))
	require.Zero(t, count(), "before the commit")
	require.NoError(t, v.Sync())
	require.GreaterOrEqual(t, count(), 3<<10)
	require.LessOrEqual(t, count(), 3<<10+20)

	// Trim takes all that is free, and again nothing but that.
	free := int64(v.Statfs().BlocksFree)
	total = 0
	n, err := v.Trim(0, 1<<62, 0)
	require.NoError(t, err)
	require.EqualValues(t, n, total)
	require.Equal(t, free<<10, total)
	total = 0
	n, err = v.Trim(10<<20, 5<<20, 64<<10)
	require.NoError(t, err)
	require.EqualValues(t, n, total)
	require.LessOrEqual(t, total, int64(5<<20))
	_, err = v.Trim(64<<20, 1<<20, 0)
	require.ErrorIs(t, err, ext4.ErrInvalid)
	_, err = v.Trim(0, 100, 0)
	require.ErrorIs(t, err, ext4.ErrInvalid)
	requireContent(t, keep, content)
	keep.Put()
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, dev.Close())
	disktest.Fsck(t, img)
}

// TestReserved: blocks that are reserved for the superuser are not given out.
func TestReserved(t *testing.T) {
	img := disktest.Make(t, "32M", "-m", "10", "-b", "1024")
	v, done := open(t, img, ext4.Options{})
	st := v.Statfs()
	require.EqualValues(t, 3276+32768/50, st.BlocksFree-st.BlocksAvail, "and those for nodes of trees")
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "f")
	n, err := f.Write(0, make([]byte, 40<<20))
	require.ErrorIs(t, err, ext4.ErrNoSpace)
	require.InDelta(t, st.BlocksAvail<<10, n, 200<<10)
	require.EqualValues(t, n, f.Attr().Size)
	require.NoError(t, v.Sync())
	require.GreaterOrEqual(t, v.Statfs().BlocksFree, uint64(3276-16))
	require.Zero(t, v.Statfs().BlocksAvail&^15)

	// Nothing that takes a block goes on, until UseReserved lets it.
	for name, op := range map[string]func(may ...ext4.May) error{
		"write": func(may ...ext4.May) error {
			_, err := f.Write(int64(n)+1<<20, make([]byte, 100<<10), may...)
			return err
		},
		"fallocate": func(may ...ext4.May) error { return f.Fallocate(0, int64(n)+2<<20, 200<<10, may...) },
		"copy":      func(may ...ext4.May) error { _, err := f.CopyRange(0, f, int64(n)+3<<20, 50<<10, may...); return err },
		"mkdir":     func(may ...ext4.May) error { return put(root.Mkdir("d", 0o755, 0, 0, with(may)...)) },
		"symlink":   func(may ...ext4.May) error { return put(root.Symlink("l", long, 0, 0, with(may)...)) },
		"setxattr":  func(may ...ext4.May) error { return f.Setxattr("user.x", make([]byte, 800), 0, may...) },
	} {
		// Trees take what they need of the reserve: no more than a few blocks.
		for v.Statfs().BlocksAvail > 0 {
			if _, err := f.Write(f.Attr().Size, make([]byte, 1<<10)); err != nil {
				require.ErrorIs(t, err, ext4.ErrNoSpace)
				break
			}
		}
		require.ErrorIs(t, op(), ext4.ErrNoSpace, name)
		require.NoError(t, op(ext4.UseReserved), name)
		require.ErrorIs(t, put(root.Mkdir("another "+name, 0o755, 0, 0)), ext4.ErrNoSpace, "UseReserved was for one operation")
	}
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}

// TestPreallocatedOnFullVolume: what was preallocated can be written, in whatever order, when the superuser has filled the volume: the nodes that its tree needs then are kept. The kernel keeps as many.
func TestPreallocatedOnFullVolume(t *testing.T) {
	const blocks = 6000
	img := disktest.Make(t, "64M", "-b", "1024", "-m", "0")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f, rest := create(t, root, "preallocated"), create(t, root, "rest")
	require.NoError(t, f.Fallocate(0, 0, blocks<<10, ext4.UseReserved))
	for size := 1 << 20; size >= 1<<10; size >>= 1 {
		for err = nil; err == nil; {
			_, err = rest.Write(rest.Attr().Size, make([]byte, size), ext4.UseReserved)
		}
		require.ErrorIs(t, err, ext4.ErrNoSpace)
	}
	require.NoError(t, v.Sync())
	require.Zero(t, v.Statfs().BlocksAvail)
	data := bytes.Repeat([]byte("preallocated 16\n"), 1<<10/16)
	for _, first := range []int64{1, 0} {
		for i := first; i < blocks; i += 2 {
			n, err := f.Write(i<<10, data)
			require.NoError(t, err, "block %d", i)
			require.Len(t, data, n)
		}
	}
	f.Put()
	rest.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}

// TestPreallocatedWithoutNodes: what was preallocated can be written when there is no block left for nodes either. The rest of an extent becomes zeroes then, as the kernel's ext4 does it, but for what lies past the end of the file.
func TestPreallocatedWithoutNodes(t *testing.T) {
	const files, blocks = 800, 24
	img := disktest.Make(t, "32M", "-b", "1024", "-m", "0", "-N", "2000")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	var all []*ext4.Inode
	for k := range files {
		f := create(t, root, fmt.Sprint(k))
		require.NoError(t, f.Fallocate(0, 0, (blocks-4)<<10))
		require.NoError(t, f.Fallocate(ext4.FallocKeepSize, 0, blocks<<10)) // four blocks past the end
		all = append(all, f)
	}
	rest := create(t, root, "rest")
	for size := 1 << 20; size >= 1<<10; size >>= 1 {
		for err = nil; err == nil; {
			_, err = rest.Write(rest.Attr().Size, make([]byte, size), ext4.UseReserved)
		}
		require.ErrorIs(t, err, ext4.ErrNoSpace)
	}
	require.NoError(t, v.Sync())

	// Each of these splits, but the last block of one write and the first of the next may join. The last extends the file.
	writes := []struct{ off, n int }{{5<<10 - 100, 200}, {8 << 10, 1 << 10}, {11 << 10, 2 << 10}, {(blocks - 6) << 10, 1 << 10}, {(blocks-3)<<10 + 10, 20}}
	want := make([]byte, (blocks-3)<<10+30)
	for _, f := range all {
		for k, w := range writes {
			data := bytes.Repeat([]byte{byte('a' + k)}, w.n)
			n, err := f.Write(int64(w.off), data)
			require.NoError(t, err, "%d bytes at %d", w.n, w.off)
			require.Equal(t, w.n, n)
			copy(want[w.off:], data)
		}
	}
	require.NoError(t, v.Sync())
	require.Zero(t, v.Statfs().BlocksFree, "the test needs that nothing is left for nodes")
	for _, f := range all {
		requireContent(t, f, want)
		f.Put()
	}
	rest.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) {
		for k := range files {
			b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(k)))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, b), "file %d", k)
		}
	})
}

func with(may []ext4.May) (w []ext4.With) {
	for _, m := range may {
		w = append(w, m)
	}
	return w
}
