package ext4_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestTruncateCut cuts the power while a file of many extents is changed as a whole: afterwards it is as it was or as it
// should be, and nothing else.
func TestTruncateCut(t *testing.T) {
	const bs, pieces = 1024, 3000
	rng := rand.New(rand.NewPCG(11, 12))
	old := make([]byte, 2*pieces*bs)
	for k := range pieces {
		copy(old[2*k*bs:], random(rng, bs))
	}
	old = old[:len(old)-bs]
	for _, op := range []struct {
		name string
		do   func(f *ext4.Inode) error
		want []byte
	}{
		{"truncate", func(f *ext4.Inode) error {
			size := int64(50 * bs)
			_, err := f.SetAttr(ext4.SetAttr{Size: &size})
			return err
		}, old[:50*bs]},
	} {
		t.Run(op.name, func(t *testing.T) {
			template := disktest.Make(t, "32M", "-b", "1024", "-O", "metadata_csum_seed")
			v, done := open(t, template, ext4.Options{})
			root, err := v.Root()
			require.NoError(t, err)
			f := create(t, root, "f")
			for k := range int64(pieces) {
				_, err := f.Write(2*k*bs, old[2*k*bs:(2*k+1)*bs])
				require.NoError(t, err)
			}
			f.Put()
			root.Put()
			done()
			again := filepath.Join(t.TempDir(), "again.img")
			seen := map[string]int{}
			for cut, finished := 0, false; !finished; cut++ {
				copySparse(t, template, again)
				dev, err := blockdev.OpenFile(again, 512)
				require.NoError(t, err)
				v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour})
				require.NoError(t, err)
				root, err := v.Root()
				require.NoError(t, err)
				f, err := root.Lookup("f")
				require.NoError(t, err)
				dev.CacheWrites()
				heal := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: cut})
				err = op.do(f)
				if err == nil {
					err = v.Sync()
				}
				finished = err == nil
				if !finished {
					require.NoError(t, dev.Cut(rng))
				}
				heal()
				f.Put()
				root.Put()
				if finished {
					require.NoError(t, v.Close())
				} else {
					_ = v.Close()
				}
				require.NoError(t, dev.Close())

				v, done := open(t, again, ext4.Options{})
				root, err = v.Root()
				require.NoError(t, err)
				f, err = root.Lookup("f")
				require.NoError(t, err)
				d, err := f.Read(0, 2*len(old))
				require.NoError(t, err)
				switch {
				case bytes.Equal(d.Bytes(), old):
					seen["old"]++
				case bytes.Equal(d.Bytes(), op.want):
					seen["new"]++
				default:
					t.Fatalf("cut at write %d: %d bytes that are neither the old nor the new", cut, len(d.Bytes()))
				}
				d.Release()
				f.Put()
				root.Put()
				done()
				disktest.Fsck(t, again)
			}
			require.NotZero(t, seen["old"], fmt.Sprint(seen))
			require.NotZero(t, seen["new"], fmt.Sprint(seen))
		})
	}
}

// TestSuperblockCut cuts the power in the middle of every write of the superblock, between the sector that changes and the
// one with the checksum: LaneFS and the kernel recover what is there. s_last_mounted is as long as it can be.
func TestSuperblockCut(t *testing.T) {
	const sector, super = 512, disk.SuperblockOffset
	for _, bs := range []string{"1024", "4096"} {
		t.Run(bs, func(t *testing.T) {
			img := disktest.Make(t, "16M", "-b", bs, "-O", "metadata_csum,metadata_csum_seed")
			mounted := strings.Repeat("x", 64)
			patchSuper(t, img, func(sb *disk.Superblock) { copy(sb.LastMounted[:], mounted) })
			dev, err := blockdev.OpenFile(img, sector)
			require.NoError(t, err)
			before := make([]byte, 2*sector)
			_, err = dev.File().ReadAt(before, super)
			require.NoError(t, err)
			var torn []string
			dir := t.TempDir()
			dev.Observe(func(e blockdev.Event) {
				if e.Op != blockdev.OpWrite || e.Off > super || e.Off+e.Len <= super {
					return
				}
				now := make([]byte, 2*sector)
				_, err := dev.File().ReadAt(now, super)
				require.NoError(t, err)
				for k := range 2 {
					half := filepath.Join(dir, fmt.Sprintf("%d-%d", len(torn)/2, k))
					copySparse(t, img, half)
					b := slices.Concat(before[:sector], now[sector:])
					if k == 1 {
						b = slices.Concat(now[:sector], before[sector:])
					}
					f, err := os.OpenFile(half, os.O_WRONLY, 0)
					require.NoError(t, err)
					_, err = f.WriteAt(b, super)
					require.NoError(t, errors.Join(err, f.Close()))
					torn = append(torn, half)
				}
				before = now
			})
			v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour})
			require.NoError(t, err)
			root, err := v.Root()
			require.NoError(t, err)
			for k := range 3 {
				f := create(t, root, fmt.Sprintf("f%d", k))
				_, err := f.Write(0, make([]byte, 10_000))
				require.NoError(t, err)
				f.Put()
				require.NoError(t, v.Sync())
			}
			root.Put()
			require.NoError(t, v.Close())
			dev.Observe(nil)
			require.NoError(t, dev.Close())
			disktest.Fsck(t, img)
			require.GreaterOrEqual(t, len(torn), 4, "a mount and an unmount")
			for _, half := range torn {
				kernels := half + "-kernel"
				copySparse(t, half, kernels)
				disktest.Mount(t, kernels, "", func(string) {})
				disktest.Fsck(t, kernels)
				v, done := open(t, half, ext4.Options{})
				require.False(t, v.ReadOnly())
				done()
				disktest.Fsck(t, half)
				require.Equal(t, mounted, string(disktest.Open(t, half).LastMounted[:]))
			}
		})
	}
}
