package ext4_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// changes are operations on the volume that agedVolume makes.
var changes = map[string]func(root *ext4.Inode) error{
	"create": func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return put(d.Create("new", unix.S_IFREG, 0, 0, 0, 0)) })
	},
	"mkdir": func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return put(d.Mkdir("new", 0o755, 0, 0)) })
	},
	"symlink": func(root *ext4.Inode) error { return put(root.Symlink("new", fmt.Sprintf("%0100d", 1), 0, 0)) },
	"tmpfile": func(root *ext4.Inode) error { return put(root.Tmpfile(0o600, 0, 0)) },
	"unlink":  func(root *ext4.Inode) error { return root.Unlink("scattered") },
	"rmdir":   func(root *ext4.Inode) error { return root.Rmdir("empty") },
	"link": func(root *ext4.Inode) error {
		return in(root, "plain", func(f *ext4.Inode) error { return root.Link(f, "new") })
	},
	"rename": func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return root.Rename("plain", d, "name0", 0) })
	},
	"exchange": func(root *ext4.Inode) error {
		return in(root, "full", func(d *ext4.Inode) error { return root.Rename("empty", d, "name0", ext4.RenameExchange) })
	},
	"write": func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { _, err := f.Write(1500, make([]byte, 40<<10)); return err })
	},
	"append": func(root *ext4.Inode) error {
		return in(root, "plain", func(f *ext4.Inode) error { _, err := f.Write(f.Attr().Size, make([]byte, 90<<10)); return err })
	},
	"truncate": func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return resize(f, 10_100) })
	},
	"punch": func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return f.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, 5000, 90_000) })
	},
	"allocate": func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return f.Fallocate(0, 0, 200<<10) })
	},
	"zero": func(root *ext4.Inode) error {
		return in(root, "scattered", func(f *ext4.Inode) error { return f.Fallocate(ext4.FallocZeroRange, 3000, 50_000) })
	},
	"setxattr": func(root *ext4.Inode) error {
		return in(root, "plain", func(f *ext4.Inode) error { return f.Setxattr("user.long", make([]byte, 700), 0) })
	},
	"chmod": func(root *ext4.Inode) error {
		mode := uint32(0o600)
		return in(root, "plain", func(f *ext4.Inode) error { _, err := f.SetAttr(ext4.SetAttr{Mode: &mode}); return err })
	},
}

func resize(f *ext4.Inode, size int64) error {
	_, err := f.SetAttr(ext4.SetAttr{Size: &size})
	return err
}

// agedVolume is an image with free space in small pieces, a file in many more, and a directory whose next name splits it. The root's next file gets an inode between
// others, in whatever groups the directories are: what changes it reads its block, as it need not where the block has no other.
func agedVolume(t *testing.T, mkfs ...string) string {
	img := disktest.Make(t, "12M", append([]string{"-b", "1024"}, mkfs...)...)
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(5, 6))
	f := create(t, root, "scattered")
	for k := range int64(120) {
		_, err := f.Write(2*k*1024, random(rng, 1024))
		require.NoError(t, err)
	}
	f.Put()
	create(t, root, "gone").Put()
	f = create(t, root, "plain")
	_, err = f.Write(0, random(rng, 3000))
	require.NoError(t, err)
	f.Put()
	require.NoError(t, put(root.Mkdir("empty", 0o755, 0, 0)))
	d, err := root.Mkdir("full", 0o755, 0, 0)
	require.NoError(t, err)
	for k := range 14 {
		require.NoError(t, put(d.Create(fmt.Sprintf("name%d", k), unix.S_IFREG, 0, 0, 0, 0)))
		require.NoError(t, put(d.Mkdir(fmt.Sprintf("%0150d", k), 0o755, 0, 0)))
	}
	d.Put()
	require.NoError(t, root.Unlink("gone"))
	root.Put()
	done()
	disktest.Fsck(t, img)
	return img
}

// kth fails one request of a kind.
type kth struct {
	*blockdev.TestDevice
	op    blockdev.Op
	k     int
	on    bool
	mu    sync.Mutex
	seen  int
	fired bool
}

func (d *kth) Do(reqs ...*blockdev.Request) error {
	var first error
	for _, r := range reqs {
		d.mu.Lock()
		hit := false
		if d.on && r.Op == d.op {
			hit = d.seen == d.k
			d.seen++
			d.fired = d.fired || hit
		}
		d.mu.Unlock()
		var err error
		if hit {
			r.Err = r.Fail(d.Info(), blockdev.ErrFault)
			err = r.Err
		} else {
			err = d.TestDevice.Do(r)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (d *kth) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}

func (d *kth) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

// TestFailsHalfWay has every k-th read or write of an operation fail once, with cold caches. The operation hears of it, and
// is either done or not, at once and after the next mount; e2fsck has nothing to say. make test takes one layout for each operation.
func TestFailsHalfWay(t *testing.T) {
	for n, kind := range []string{"default", "ext3"} {
		mkfs := map[string][]string{"default": {"-O", "metadata_csum_seed,orphan_file"}, "ext3": {"-t", "ext3", "-O", "^orphan_file"}}[kind]
		template := agedVolume(t, mkfs...)
		for k, name := range slices.Sorted(maps.Keys(changes)) {
			change, extents := changes[name], name == "allocate" || name == "zero" // which take extents
			if extents && kind == "ext3" || !extents && !disktest.Turn(k+n, 2) {
				continue
			}
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				img := filepath.Join(t.TempDir(), "img")
				undone := 0
				for _, op := range []blockdev.Op{blockdev.OpRead, blockdev.OpWrite} {
					for k, finished := 0, false; !finished; k++ {
						copySparse(t, template, img)
						dev, err := blockdev.OpenFile(img, 512)
						require.NoError(t, err)
						bad := &kth{TestDevice: dev, op: op, k: k}
						v, err := ext4.Open(bad, ext4.Options{Atime: ext4.AtimeNever, CommitInterval: time.Hour})
						require.NoError(t, err)
						root, err := v.Root()
						require.NoError(t, err)
						bad.on = true
						err = change(root)
						bad.on = false
						failed := bad.fired
						finished = !failed
						if failed && op == blockdev.OpWrite || err != nil {
							require.ErrorIs(t, err, blockdev.ErrFault, "%v %d", op, k)
							undone++
						}
						root.Put()
						now := map[string]string(ourManifest(t, v))
						require.False(t, v.ReadOnly(), "%v %d: nothing that can't be undone", op, k)
						require.NoError(t, v.Close(), "%v %d", op, k)
						require.NoError(t, dev.Close())
						disktest.Fsck(t, img)
						v, done := open(t, img, ext4.Options{ReadOnly: true})
						requireSame(t, now, ourManifest(t, v))
						done()
					}
				}
				require.NotZero(t, undone)
			})
		}
	}
}

// TestLookupFails has the search for a new name's namesake fail, in a directory without index where the namesake lies behind free
// space: the error is told. Taken for "no such name" it would give the directory two entries of one name, which e2fsck passes over.
func TestLookupFails(t *testing.T) {
	img := disktest.Make(t, "12M", "-b", "1024", "-O", "^dir_index")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	d, err := root.Mkdir("d", 0o755, 0, 0)
	require.NoError(t, err)
	for k := range 12 {
		require.NoError(t, put(d.Create(fmt.Sprintf("%0200d", k), unix.S_IFREG, 0, 0, 0, 0)))
	}
	require.NoError(t, d.Unlink(fmt.Sprintf("%0200d", 0)))
	d.Put()
	root.Put()
	done()
	last := fmt.Sprintf("%0200d", 11)
	for name, op := range map[string]func(d *ext4.Inode) error{
		"link": func(d *ext4.Inode) error {
			return in(d, fmt.Sprintf("%0200d", 1), func(f *ext4.Inode) error { return d.Link(f, last) })
		},
		"create":  func(d *ext4.Inode) error { return put(d.Create(last, unix.S_IFREG, 0, 0, 0, 0)) },
		"mkdir":   func(d *ext4.Inode) error { return put(d.Mkdir(last, 0o755, 0, 0)) },
		"symlink": func(d *ext4.Inode) error { return put(d.Symlink(last, "x", 0, 0)) },
		"rename": func(d *ext4.Inode) error {
			return d.Rename(fmt.Sprintf("%0200d", 1), d, last, ext4.RenameNoReplace)
		},
	} {
		t.Run(name, func(t *testing.T) {
			again := filepath.Join(t.TempDir(), "img")
			failures := 0
			for k, finished := 0, false; !finished; k++ {
				copySparse(t, img, again)
				dev, err := blockdev.OpenFile(again, 512)
				require.NoError(t, err)
				bad := &kth{TestDevice: dev, op: blockdev.OpRead, k: k}
				v, err := ext4.Open(bad, ext4.Options{Atime: ext4.AtimeNever, CommitInterval: time.Hour})
				require.NoError(t, err)
				root, err := v.Root()
				require.NoError(t, err)
				d, err := root.Lookup("d")
				require.NoError(t, err)
				bad.on = true
				err = op(d)
				bad.on = false
				if finished = !bad.fired; finished {
					require.ErrorIs(t, err, ext4.ErrExist)
				} else {
					require.ErrorIs(t, err, blockdev.ErrFault)
					failures++
				}
				d.Put()
				root.Put()
				require.NoError(t, v.Close())
				require.NoError(t, dev.Close())
			}
			require.NotZero(t, failures)
		})
	}
}
