package ext4_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

var long = strings.Repeat("l", 240) // four such names do not fit into a directory block of 1 KiB

// spaceOps are operations that need blocks. prepare has all the space it wants, do has what is left. An operation that
// fails has done nothing, unless it is partial: then what it did can be seen.
var spaceOps = []struct {
	name    string
	prepare func(t *testing.T, root *ext4.Inode)
	do      func(root *ext4.Inode) error
	partial bool
}{
	{"create in a full directory", fullDir, func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return put(d.Create(long+"4", unix.S_IFREG|0o600, 0, 0, 0, 0)) })
	}, false},
	{"mkdir", nil, func(root *ext4.Inode) error { return put(root.Mkdir("new", 0o755, 0, 0)) }, false},
	{"mkdir in a full directory", fullDir, func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return put(d.Mkdir(long+"4", 0o755, 0, 0)) })
	}, false},
	{"symlink", nil, func(root *ext4.Inode) error { return put(root.Symlink("new", long, 0, 0)) }, false},
	{"symlink in a full directory", fullDir, func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return put(d.Symlink(long+"4", long, 0, 0)) })
	}, false},
	{"link into a full directory", fullDir, func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error {
			return in(root, "file", func(f *ext4.Inode) error { return d.Link(f, long+"4") })
		})
	}, false},
	{"rename into a full directory", fullDir, func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return root.Rename("file", d, long+"4", 0) })
	}, false},
	{"attribute", nil, func(root *ext4.Inode) error {
		return in(root, "file", func(f *ext4.Inode) error { return f.Setxattr("user.a", bytes.Repeat([]byte("a"), 700), 0) })
	}, false},
	{"write into a hole", scattered, func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return write(f, 777<<10, 1000) })
	}, false},
	{"write far away", nil, func(root *ext4.Inode) error {
		return in(root, "file", func(f *ext4.Inode) error { return write(f, 1<<30, 1000) })
	}, false},
	{"write of several blocks", nil, func(root *ext4.Inode) error {
		return in(root, "file", func(f *ext4.Inode) error { return write(f, 100<<10, 5<<10) })
	}, true},
	{"write into a hole and over what follows", scattered, func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return writeOver(f, 1<<10, 5<<10) })
	}, true},
	{"write over blocks and into unwritten ones behind", scattered, func(root *ext4.Inode) error {
		return in(root, "mixed", func(f *ext4.Inode) error { return writeOver(f, 0, 5<<10) })
	}, true},
	{"append to a small file", nil, func(root *ext4.Inode) error {
		return in(root, "small", func(f *ext4.Inode) error { return write(f, 10, 300) })
	}, false},
	{"preallocate", scattered, func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return f.Fallocate(ext4.FallocKeepSize, 0, 8<<10) })
	}, true},
	{"punch", scattered, func(root *ext4.Inode) error {
		return in(root, "pieces", func(f *ext4.Inode) error {
			return f.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, 41<<10, 2<<10)
		})
	}, false},
	{"punch across block edges", scattered, func(root *ext4.Inode) error {
		return in(root, "pieces", func(f *ext4.Inode) error {
			return f.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, 41<<10-100, 2<<10+200)
		})
	}, false},
	{"zero across block edges", scattered, func(root *ext4.Inode) error {
		return in(root, "pieces", func(f *ext4.Inode) error {
			return f.Fallocate(ext4.FallocZeroRange|ext4.FallocKeepSize, 9<<10-100, 22<<10)
		})
	}, true},
	{"zero", scattered, func(root *ext4.Inode) error {
		return in(root, "pieces", func(f *ext4.Inode) error { return f.Fallocate(ext4.FallocZeroRange, 41<<10, 2<<10) })
	}, false},
	{"write into unwritten blocks", scattered, func(root *ext4.Inode) error {
		return in(root, "unwritten", func(f *ext4.Inode) error { return write(f, 41<<10, 2000) })
	}, true},
	{"exchange", fullDir, func(root *ext4.Inode) error { return root.Rename("file", root, "small", ext4.RenameExchange) }, false},
	{"file without a name", nil, func(root *ext4.Inode) error { return put(root.Tmpfile(unix.S_IFREG|0o600, 0, 0)) }, true},
}

func put(i *ext4.Inode, err error) error {
	if err == nil {
		i.Put()
	}
	return err
}

func in(dir *ext4.Inode, name string, f func(*ext4.Inode) error) error {
	i, err := dir.Lookup(name)
	if err != nil {
		return err
	}
	defer i.Put()
	return f(i)
}

func write(f *ext4.Inode, off int64, n int) error {
	_, err := f.Write(off, bytes.Repeat([]byte("w"), n))
	return err
}

// writeOver writes n bytes at off, and wants those that it does not count to stay as they are.
func writeOver(f *ext4.Inode, off int64, n int) error {
	before, err := f.Read(off, n)
	if err != nil {
		return err
	}
	defer before.Release()
	done, werr := f.Write(off, bytes.Repeat([]byte("x"), n))
	after, err := f.Read(off, n)
	if err != nil {
		return err
	}
	defer after.Release()
	if !bytes.Equal(before.Bytes()[done:], after.Bytes()[done:]) {
		return fmt.Errorf("%d bytes were written, and others behind them (%v)", done, werr)
	}
	return werr
}

func fullDir(t *testing.T, root *ext4.Inode) {
	d, err := root.Mkdir("full", 0o755, 0, 0)
	require.NoError(t, err)
	defer d.Put()
	for k := range 3 {
		create(t, d, fmt.Sprint(long, k)).Put()
	}
}

// scattered makes files whose tree has no room where the operations want it: every second block of one is a hole, the
// others' extents fill the root.
func scattered(t *testing.T, root *ext4.Inode) {
	f := create(t, root, "scattered")
	for k := range int64(4) {
		require.NoError(t, write(f, k*2048, 1000))
	}
	f.Put()
	f = create(t, root, "pieces")
	for k := range int64(4) {
		require.NoError(t, write(f, k*20<<10, 10<<10))
	}
	f.Put()
	f = create(t, root, "unwritten")
	for k := range int64(4) {
		if err := f.Fallocate(0, k*20<<10, 10<<10); !errors.Is(err, ext4.ErrNotSup) {
			require.NoError(t, err)
		}
	}
	f.Put()
	f = create(t, root, "mixed") // unwritten blocks first, so that those before them lie elsewhere
	if err := f.Fallocate(0, 2<<10, 8<<10); !errors.Is(err, ext4.ErrNotSup) {
		require.NoError(t, err)
	}
	for _, off := range []int64{0, 20 << 10, 40 << 10} {
		require.NoError(t, write(f, off, 2<<10))
	}
	f.Put()
}

// TestNoSpace carries out each operation on volumes that have 0, 1, 2 … blocks left; make test takes one of the layouts for each.
func TestNoSpace(t *testing.T) {
	for k, l := range []struct {
		name string
		args []string
	}{
		{"extents", []string{"-b", "1024", "-m", "0"}},
		{"block map", []string{"-b", "1024", "-m", "0", "-t", "ext2"}},
		{"inline data, no index", []string{"-b", "1024", "-m", "0", "-O", "inline_data,^dir_index"}},
	} {
		for n, op := range spaceOps {
			if !disktest.Turn(k+n, 3) {
				continue
			}
			t.Run(l.name+"/"+op.name, func(t *testing.T) {
				template := disktest.Make(t, "4M", l.args...)
				v, done := open(t, template, ext4.Options{})
				root, err := v.Root()
				require.NoError(t, err)
				f := create(t, root, "file")
				require.NoError(t, write(f, 0, 3000))
				f.Put()
				f = create(t, root, "small")
				require.NoError(t, write(f, 0, 10))
				f.Put()
				if op.prepare != nil {
					op.prepare(t, root)
				}
				root.Put()
				done()
				for left := 0; ; left++ {
					img := filepath.Join(t.TempDir(), "full.img")
					copySparse(t, template, img)
					if noSpace(t, img, left, op.do, op.partial) {
						return
					}
					require.Less(t, left, 12, "it never succeeds")
				}
			})
		}
	}
}

// noSpace runs do on the volume with so many blocks left, and reports whether it succeeded.
func noSpace(t *testing.T, img string, left int, do func(*ext4.Inode) error, partial bool) bool {
	v, done := open(t, img, ext4.Options{Log: disktest.Logger(func(line string) { t.Errorf("logged: %s", line) })})
	root, err := v.Root()
	require.NoError(t, err)
	ballast := create(t, root, "ballast")
	n, err := ballast.Write(0, make([]byte, 5<<20))
	require.ErrorIs(t, err, ext4.ErrNoSpace)
	require.NoError(t, v.Sync())
	size := int64(n) - int64(left)<<10
	_, err = ballast.SetAttr(ext4.SetAttr{Size: &size})
	require.NoError(t, err)
	require.NoError(t, v.Sync())
	ballast.Put()
	before := ourManifest(t, v)

	err = do(root)
	supported := !errors.Is(err, ext4.ErrNotSup)
	if err != nil && supported {
		require.ErrorIs(t, err, ext4.ErrNoSpace)
	}
	after := ourManifest(t, v)
	if err != nil && !partial {
		requireSame(t, before, after)
	}
	root.Put()
	done()
	disktest.Fsck(t, img)
	v, done = open(t, img, ext4.Options{})
	requireSame(t, after, ourManifest(t, v))
	root, err2 := v.Root()
	require.NoError(t, err2)
	require.NoError(t, root.Unlink("ballast"))
	require.NoError(t, v.Sync())
	if supported {
		if err := do(root); err != nil && !errors.Is(err, ext4.ErrExist) && !errors.Is(err, ext4.ErrNotExist) {
			require.NoError(t, err, "with space again")
		}
	}
	root.Put()
	done()
	disktest.Fsck(t, img)
	return err == nil || !supported
}

// TestFullVolume has several at once fill small volumes with all kinds of things until nothing is left, of blocks or of
// inodes, then remove half, and again.
func TestFullVolume(t *testing.T) {
	for k, l := range []struct {
		name string
		args []string
	}{
		{"blocks", []string{"-b", "1024", "-N", "4000"}},
		{"inodes", []string{"-b", "1024", "-N", "200"}},
		{"block map", []string{"-t", "ext3", "-N", "3000"}},
		{"inline", []string{"-O", "inline_data", "-b", "4096", "-I", "512"}},
	} {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			img := disktest.Make(t, "12M", l.args...)
			for round := range 3 {
				v, done := open(t, img, ext4.Options{})
				var wg sync.WaitGroup
				for w := range 4 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						f := &filler{t: t, v: v, rng: rand.New(rand.NewPCG(uint64(round), uint64(w))), blockMap: l.name == "block map"}
						f.run(fmt.Sprintf("worker%d", w))
					}()
				}
				wg.Wait()
				require.False(t, v.ReadOnly())
				want := ourManifest(t, v)
				done()
				disktest.Fsck(t, img)
				disktest.Mount(t, img, "ro", func(dir string) { requireSame(t, want, kernelManifest(t, dir)) })
			}
			v, done := open(t, img, ext4.Options{})
			emptyOurs(t, v)
			done()
			disktest.Fsck(t, img)
		})
	}
}

// filler is one worker of TestFullVolume.
type filler struct {
	t    *testing.T
	v    *ext4.FS
	rng  *rand.Rand
	full int

	blockMap bool // files have no unwritten blocks, so none are preallocated
}

// ok says whether an operation succeeded; the only reason not to is that something ran out.
func (f *filler) ok(err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, ext4.ErrNoSpace):
		f.full++
	default:
		f.t.Errorf("%v", err)
	}
	return false
}

func (f *filler) run(name string) {
	root, err := f.v.Root()
	if !f.ok(err) {
		return
	}
	defer root.Put()
	dir, err := root.Lookup(name)
	if errors.Is(err, ext4.ErrNotExist) {
		dir, err = root.Mkdir(name, 0o755, 0, 0)
	}
	if !f.ok(err) {
		return
	}
	defer dir.Put()
	for f.full < 60 {
		f.step(dir)
	}
	names := list(f.t, dir)
	for _, n := range names {
		if f.rng.IntN(2) == 0 {
			continue
		}
		if err := dir.Unlink(n); errors.Is(err, ext4.ErrIsDir) {
			err = dir.Rmdir(n)
			f.ok(err)
		} else {
			f.ok(err)
		}
	}
	for range 200 {
		f.step(dir)
	}
}

func (f *filler) step(dir *ext4.Inode) {
	name := fmt.Sprintf("%d%s", f.rng.Uint32(), strings.Repeat("n", f.rng.IntN(200)))
	switch f.rng.IntN(10) {
	case 0:
		if d, err := dir.Mkdir(name, 0o755, 0, 0); f.ok(err) {
			d.Put()
		}
		return
	case 1:
		if l, err := dir.Symlink(name, strings.Repeat("t", 1+f.rng.IntN(900)), 0, 0); f.ok(err) {
			l.Put()
		}
		return
	}
	i, err := dir.Create(name, unix.S_IFREG|0o600, 0, 0, 0, 0)
	if !f.ok(err) {
		return
	}
	defer i.Put()
	switch f.rng.IntN(8) {
	case 0:
		f.ok(i.Setxattr("user.x", make([]byte, f.rng.IntN(900)), 0))
	case 1:
		err := i.Fallocate(0, int64(f.rng.IntN(1<<20)), 1+int64(f.rng.IntN(200_000)))
		if !f.blockMap {
			f.ok(err)
		} else if !errors.Is(err, ext4.ErrNotSup) {
			f.t.Errorf("fallocate of a file with a block map: %v", err)
		}
	case 2:
		f.ok(dir.Link(i, name+" again"))
	case 3:
		f.ok(dir.Rename(name, dir, "renamed "+name, 0))
	}
	for range f.rng.IntN(6) {
		off := int64(f.rng.IntN(1 << f.rng.IntN(24)))
		f.ok(write(i, off, 1+f.rng.IntN(100_000)))
		f.ok(i.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, off+5000, 1+int64(f.rng.IntN(20_000))))
	}
	if f.rng.IntN(4) == 0 {
		size := int64(f.rng.IntN(50_000))
		_, err := i.SetAttr(ext4.SetAttr{Size: &size})
		f.ok(err)
	}
}

// TestAppendWaitsForCommit appends more than is free to a file that takes nothing else, while freed blocks wait for a commit: what
// was appended before the space ran out does not make the rest forbidden.
func TestAppendWaitsForCommit(t *testing.T) {
	img := disktest.Make(t, "16M", "-b", "1024")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "log")
	require.NoError(t, f.SetFlags(f.Flags()|disk.FlAppend))
	big := create(t, root, "big")
	require.NoError(t, big.Fallocate(0, 0, 4<<20))
	require.NoError(t, v.Sync())
	rest := create(t, root, "rest")
	for size := int64(1 << 20); size >= 1024; {
		if err := rest.Fallocate(0, rest.Attr().Size, size); err != nil {
			require.ErrorIs(t, err, ext4.ErrNoSpace)
			size /= 2
		}
	}
	require.NoError(t, resize(rest, rest.Attr().Size-(100<<10)))
	require.NoError(t, v.Sync())
	require.NoError(t, resize(big, 0)) // not durable yet
	n, err := f.Write(0, make([]byte, 2<<20))
	require.NoError(t, err)
	require.Equal(t, 2<<20, n)
	for _, i := range []*ext4.Inode{f, big, rest, root} {
		i.Put()
	}
	done()
	disktest.Fsck(t, img)
}

// TestAllWaitForCommit has many directories made at once on a full volume, while freed blocks wait for a commit, for which any of them may be the first to ask: all find room.
func TestAllWaitForCommit(t *testing.T) {
	const makers = 16
	img := disktest.Make(t, "16M", "-b", "1024")
	v, done := open(t, img, ext4.Options{CommitInterval: time.Hour})
	root, err := v.Root()
	require.NoError(t, err)
	big, rest := create(t, root, "big"), create(t, root, "rest")
	fill := func(f *ext4.Inode) {
		t.Helper()
		for size := int64(1 << 20); size >= 1024; {
			if err := f.Fallocate(0, f.Attr().Size, size); err != nil {
				require.ErrorIs(t, err, ext4.ErrNoSpace)
				size /= 2
			}
		}
	}
	var dirs [makers]*ext4.Inode
	for k := range dirs {
		dirs[k], err = root.Mkdir(fmt.Sprint(k), 0o755, 0, 0)
		require.NoError(t, err)
	}
	require.NoError(t, big.Fallocate(0, 0, 64<<10))
	fill(rest)
	for round := range 200 {
		require.NoError(t, v.Sync())
		fill(rest)
		require.NoError(t, resize(big, 0)) // not durable yet
		var all sync.WaitGroup
		var errs [makers]error
		for k := range makers {
			all.Go(func() { errs[k] = put(dirs[k].Mkdir("new", 0o755, 0, 0)) })
		}
		all.Wait()
		require.NoError(t, errors.Join(errs[:]...), "round %d", round)
		for k := range makers {
			require.NoError(t, dirs[k].Rmdir("new"))
		}
		require.NoError(t, v.Sync())
		require.NoError(t, big.Fallocate(0, 0, 32<<10))
	}
	for _, i := range append(dirs[:], big, rest, root) {
		i.Put()
	}
	done()
	disktest.Fsck(t, img)
}
