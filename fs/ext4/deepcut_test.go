package ext4_test

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestDeepCut cuts the power while a file whose tree is three levels deep is changed as a whole, on a volume where nothing is free but what such a tree needs, and transactions are
// short: each block is as it was or as it should be. LaneFS and the kernel find the same, and e2fsck nothing wrong. Make test takes one of the changes.
func TestDeepCut(t *testing.T) {
	const bs, blocks = 1024, 30_000
	content := func(l int) []byte {
		if l%2 == 0 {
			return make([]byte, bs)
		}
		b := bytes.Repeat([]byte{byte(l), byte(l >> 8), 0x5a, 0xa5}, bs/4)
		return b
	}
	template := disktest.Make(t, "48M", "-b", "1024", "-m", "0", "-J", "size=1", "-N", "64", "-O", "orphan_file,metadata_csum_seed")
	v, done := open(t, template, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f, rest := create(t, root, "f"), create(t, root, "rest")
	require.NoError(t, f.Fallocate(0, 0, blocks*bs))
	for size := int64(1 << 20); size >= bs; {
		if err := rest.Fallocate(0, rest.Attr().Size, size); err != nil {
			require.ErrorIs(t, err, ext4.ErrNoSpace)
			size /= 2
		}
	}
	for l := 1; l < blocks; l += 2 {
		_, err := f.Write(int64(l)*bs, content(l))
		require.NoError(t, err)
	}
	for _, i := range []*ext4.Inode{f, rest, root} {
		i.Put()
	}
	done()
	require.Contains(t, disktest.Debugfs(t, template, "extents -n f"), "2/ 3")

	resize := func(f *ext4.Inode, size int64) error {
		_, err := f.SetAttr(ext4.SetAttr{Size: &size})
		return err
	}
	zero := make([]byte, bs)
	timeless := func(m manifest) manifest { // the kernel sets the times of a file that it truncates when it mounts
		for p, w := range m {
			m[p] = regexp.MustCompile(` mtime \S+`).ReplaceAllString(w, "")
		}
		return m
	}
	for k, op := range []struct {
		name string
		do   func(root, f *ext4.Inode) error
		gone bool                        // the file may be gone
		size int64                       // it may have
		may  func(l int, is []byte) bool // a block may have, beside what it had
	}{
		{"truncate", func(_, f *ext4.Inode) error { return resize(f, 5000*bs+1) }, false, 5000*bs + 1, nil},
		{"truncate and grow", func(_, f *ext4.Inode) error {
			if err := resize(f, 5001*bs+1); err != nil {
				return err
			}
			return resize(f, blocks*bs)
		}, false, 5001*bs + 1, func(l int, is []byte) bool {
			return l > 5001 && bytes.Equal(is, zero) || l == 5001 && bytes.Equal(is[1:], zero[1:]) && is[0] == content(l)[0]
		}},
		{"punch", func(_, f *ext4.Inode) error {
			return f.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, 3000*bs, (blocks-7000)*bs)
		}, false, 0, func(l int, is []byte) bool { return l >= 3000 && l < blocks-4000 && bytes.Equal(is, zero) }},
		{"zero", func(_, f *ext4.Inode) error {
			return f.Fallocate(ext4.FallocZeroRange, 3000*bs, (blocks-7000)*bs)
		}, false, 0, func(l int, is []byte) bool { return l >= 3000 && l < blocks-4000 && bytes.Equal(is, zero) }},
		{"fill", func(_, f *ext4.Inode) error {
			for l := 0; l < blocks; l += 2 {
				if _, err := f.Write(int64(l)*bs, content(l+1)); err != nil {
					return err
				}
			}
			return nil
		}, false, 0, func(l int, is []byte) bool { return l%2 == 0 && bytes.Equal(is, content(l+1)) }},
		{"unlink", func(root, f *ext4.Inode) error { return root.Unlink("f") }, true, 0, nil},
		{"write all over", func(_, f *ext4.Inode) error { _, err := f.Write(0, bytes.Repeat([]byte{7}, 20_000*bs)); return err }, false, 0,
			func(l int, is []byte) bool { return l < 20_000 && bytes.Equal(is, bytes.Repeat([]byte{7}, bs)) }},
	} {
		if !disktest.Turn(k, 7) {
			continue
		}
		t.Run(op.name, func(t *testing.T) {
			seed := disktest.FreshSeed()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			run := func(cut int) (writes int) { // -1: to the end
				again := filepath.Join(dir, "again.img")
				copySparse(t, template, again)
				dev, err := blockdev.OpenFile(again, bs)
				require.NoError(t, err)
				v, err := ext4.Open(dev, ext4.Options{CommitInterval: 5 * time.Millisecond}) // so that no change is one transaction
				require.NoError(t, err)
				root, err := v.Root()
				require.NoError(t, err)
				f, err := root.Lookup("f")
				require.NoError(t, err)
				dev.Observe(func(e blockdev.Event) {
					if e.Op == blockdev.OpWrite {
						writes++
					}
				})
				heal := func() {}
				if cut >= 0 {
					dev.CacheWrites()
					heal = dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: cut})
				}
				err = op.do(root, f)
				f.Put()
				if err == nil {
					err = v.Sync()
				}
				if cut < 0 {
					require.NoError(t, err)
				}
				root.Put()
				_ = v.Close()
				if err != nil {
					require.NoError(t, dev.Cut(rng))
				}
				heal()
				require.NoError(t, dev.Close())

				kernel := filepath.Join(dir, "kernel.img")
				copySparse(t, again, kernel)
				v, done := open(t, again, ext4.Options{})
				want := timeless(ourManifest(t, v))
				root, err = v.Root()
				require.NoError(t, err)
				if f, err := root.Lookup("f"); err != nil {
					require.ErrorIs(t, err, ext4.ErrNotExist)
					require.True(t, op.gone)
				} else {
					size := f.Attr().Size
					if size != blocks*bs {
						require.Equal(t, op.size, size)
					}
					d, err := f.Read(0, int(size))
					require.NoError(t, err)
					for l := 0; int64(l)*bs < size; l++ {
						is, old := d.Bytes()[l*bs:min((l+1)*bs, int(size))], content(l)
						if !bytes.Equal(is, old[:len(is)]) && (op.may == nil || !op.may(l, is)) {
							t.Fatalf("cut at write %d: block %d: % x", cut, l, is[:16])
						}
					}
					d.Release()
					f.Put()
				}
				root.Put()
				done()
				disktest.Fsck(t, again)
				disktest.Mount(t, kernel, "", func(dir string) { requireSame(t, want, timeless(kernelManifest(t, dir))) })
				disktest.Fsck(t, kernel)
				return writes
			}
			writes := run(-1)
			t.Logf("%d writes", writes)
			for range 3 {
				run(rng.IntN(writes))
			}
		})
	}
}
