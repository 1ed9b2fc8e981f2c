package ext4_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestSmallPiecesReadNothing: of a file that is written in small pieces, one behind the other, the block in which a piece begins is read once.
func TestSmallPiecesReadNothing(t *testing.T) {
	v, _ := open(t, disktest.Make(t, "16M"), ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	f, err := root.Create("f", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	defer f.Put()
	var want []byte
	rng := rand.New(rand.NewPCG(1, 2))
	write := func(n int) {
		p := random(rng, n)
		_, err := f.Write(int64(len(want)), p)
		require.NoError(t, err)
		want = append(want, p...)
	}
	write(32)
	write(24)
	before := v.Stats().DataRead
	for range 100 { // as SQLite writes a page to its log
		write(4096)
		write(24)
	}
	require.Equal(t, before, v.Stats().DataRead)
	require.True(t, bytes.Equal(want, bytesOf(t, f)))
}

// bytesOf is what the volume has of a file.
func bytesOf(t *testing.T, f *ext4.Inode) []byte {
	d, err := f.Read(0, int(f.Attr().Size))
	require.NoError(t, err)
	defer d.Release()
	return append([]byte{}, d.Bytes()...)
}

// TestSmallPiecesAndOthers: small pieces are written to three files, two of which share the place for a copy of their last block, between all else that
// writes to them. The bytes are as in memory after each.
func TestSmallPiecesAndOthers(t *testing.T) {
	for _, bs := range []string{"1024", "4096"} {
		t.Run(bs, func(t *testing.T) {
			img := disktest.Make(t, "32M", "-b", bs)
			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			require.NoError(t, err)
			root, err := v.Root()
			require.NoError(t, err)
			var files []*ext4.Inode
			for k := range 33 {
				f, err := root.Create(fmt.Sprint(k), unix.S_IFREG|0o600, 0, 0, 0, 0)
				require.NoError(t, err)
				if k == 0 || k == 1 || k == 32 {
					files = append(files, f)
				} else {
					f.Put()
				}
			}
			require.Equal(t, files[0].Ino()%32, files[2].Ino()%32)
			buf, err := dev.Alloc(64 << 10)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(3, 4))
			block, wants, next := int(v.BlockSize()), make([][]byte, 3), make([]int, 3)
			for step := range 4000 {
				k := rng.IntN(3)
				f, want := files[k], wants[k]
				put := func(off int, p []byte) {
					if end := off + len(p); end > len(want) {
						want = append(want, make([]byte, end-len(want))...)
					}
					copy(want[off:], p)
				}
				next[k] = min(next[k], len(want))
				at := next[k] / block * block // the block that there may be a copy of
				inside := at+block <= len(want)
				near := func() (off, n int) {
					off = max(0, min(at-block/2+rng.IntN(2*block), len(want)-1))
					return off, min(1+rng.IntN(block), len(want)-off)
				}
				switch op := rng.IntN(16); {
				case op < 8:
					n := 1 + rng.IntN(block/2)
					if op == 0 {
						n = at + block - next[k] // to the end of the block
					}
					p := random(rng, n)
					_, err = f.Write(int64(next[k]), p)
					put(next[k], p)
					next[k] += len(p)
				case op == 8 && inside: // a whole block in place
					p := random(rng, block)
					_, err = f.Write(int64(at), p)
					put(at, p)
				case op == 9 && inside: // and from memory that the CPU does not reach
					p := random(rng, block)
					copy(buf.Bytes(), p)
					ts := []ext4.Transfer{{Off: int64(at), N: block, Mem: bufferTarget{buf}}}
					f.WriteAll(ts)
					err = ts[0].Err
					put(at, p)
				case op == 10 && len(want) > 0:
					n, _ := near()
					err = resize(f, int64(n))
					want = want[:n]
				case op == 11: // longer: zeroes
					n := len(want) + rng.IntN(3*block)
					err = resize(f, int64(n))
					put(len(want), make([]byte, n-len(want)))
				case op == 12 && len(want) > 0:
					off, n := near()
					err = f.Fallocate(ext4.FallocPunchHole|ext4.FallocKeepSize, int64(off), int64(n))
					put(off, make([]byte, n))
				case op == 13 && len(want) > 0:
					off, n := near()
					err = f.Fallocate(ext4.FallocZeroRange, int64(off), int64(n))
					put(off, make([]byte, n))
				case op == 14 && len(want) > 0:
					next[k], _ = near()
				case op == 15 && len(want) > 100*block:
					err = resize(f, 0)
					want = nil
				}
				require.NoError(t, err)
				wants[k] = want
				require.True(t, bytes.Equal(want, bytesOf(t, f)), "step %d, file %d", step, k)
			}
			buf.Release()
			for _, f := range files {
				f.Put()
			}
			root.Put()
			require.NoError(t, v.Close())
			require.NoError(t, dev.Close())
			disktest.Fsck(t, img)
		})
	}
}
