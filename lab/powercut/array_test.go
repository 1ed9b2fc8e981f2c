package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/md/mdtest"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// socket is a disk on the power supply that all members of an array have: it goes off after a number of their commands.
type socket struct {
	*blockdev.TestDevice
	left *atomic.Int64
}

var errPower = errors.New("the power is off")

func (s socket) Do(reqs ...*blockdev.Request) (first error) {
	for _, r := range reqs {
		if s.left.Add(-1) < 0 {
			r.Err = r.Fail(s.Info(), errPower)
		} else {
			_ = s.TestDevice.Do(r)
		}
		if first == nil {
			first = r.Err
		}
	}
	return first
}

// TestArray cuts the power of all members of an array at once, or has one alone fail for good before that; each loses another part of what was
// not flushed. The volume recovers to what fsync promised, and e2fsck finds no damage.
func TestArray(t *testing.T) {
	disktest.Tool(t, "mkfs.ext4", "e2fsck")
	img := filepath.Join(t.TempDir(), "image")
	require.NoError(t, image.Make(img, "10M", "-b", "1024", "-J", "size=1", "-N", "400", "-O", "metadata_csum_seed,orphan_file"))
	fresh, err := os.ReadFile(img)
	require.NoError(t, err)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { cutArray(t, fresh, seed) })
	}
}

func cutArray(t *testing.T, fresh []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	a := mdtest.Array{Set: 1, Minor: 2, Chunk: []uint32{8, 128}[seed%2], Features: 1 << 12, Layout: 1 + uint32(seed/2%2), Disks: 3}
	var left, others atomic.Int64
	var raw, powered []md.Member
	left.Store(1 << 40)
	others.Store(1 << 40)
	alone := -1
	if seed%4 == 3 {
		alone = rng.IntN(3)
	}
	for role, kib := range []int64{3000, 6000, 4000} {
		d := blockdev.NewMem(kib<<10, 512)
		defer d.Close()
		require.NoError(t, a.Write(d.File(), kib<<10, role))
		name := fmt.Sprint("disk", role)
		plug := &left
		if alone >= 0 && role != alone {
			plug = &others
		}
		raw, powered = append(raw, md.Member{Name: name, Dev: d}), append(powered, md.Member{Name: name, Dev: socket{d, plug}})
	}
	all, err := md.Open(powered)
	require.NoError(t, err)
	b, err := all.Alloc(len(fresh))
	require.NoError(t, err)
	defer b.Release()
	copy(b.Bytes(), fresh)
	require.NoError(t, all.Write(0, true, b.Slice(0, len(fresh))))
	for _, m := range raw {
		m.Dev.(*blockdev.TestDevice).CacheWrites()
	}
	if left.Store(60 + rng.Int64N(900)); alone >= 0 {
		left.Store(60 + rng.Int64N(200))
	}

	// Files are written in turn, and some of them synchronized: what they then are they have to be, or something newer.
	const files = 8
	versions, promised := [files][][]byte{}, [files]int{}
	v, err := ext4.Open(all, ext4.Options{CacheSize: 4 << 20})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	for err == nil {
		k := rng.IntN(files)
		name := fmt.Sprint("file", k)
		var f *ext4.Inode
		if f, err = root.Lookup(name); errors.Is(err, ext4.ErrNotExist) {
			f, err = root.Create(name, 0o100600, 0, 0, 0, 0)
		}
		if err != nil {
			break
		}
		content := bytes.Repeat([]byte(fmt.Sprintf("%d of %d;", len(versions[k]), k)), 1+rng.IntN(20000))
		versions[k] = append(versions[k], content)
		temporary := "new" // so that a version is there whole or not at all
		var n *ext4.Inode
		if n, err = root.Create(temporary, 0o100600, 0, 0, 0, 0); err == nil {
			if _, err = n.Write(0, content); err == nil {
				err = n.Fsync(false)
			}
			if err == nil {
				err = root.Rename(temporary, root, name, 0)
			}
			n.Put()
		}
		f.Put()
		if err == nil && rng.IntN(2) == 0 {
			if err = root.Fsync(false); err == nil {
				promised[k] = len(versions[k])
			}
		}
	}
	require.ErrorIs(t, err, errPower)
	root.Put()
	require.Error(t, v.Close())
	for _, m := range raw {
		require.NoError(t, m.Dev.(*blockdev.TestDevice).Cut(rng))
	}

	again, err := md.Open([]md.Member{raw[2], raw[0], raw[1]})
	require.NoError(t, err)
	v, err = ext4.Open(again, ext4.Options{CacheSize: 4 << 20})
	require.NoError(t, err)
	root, err = v.Root()
	require.NoError(t, err)
	for k := range files {
		f, err := root.Lookup(fmt.Sprint("file", k))
		if errors.Is(err, ext4.ErrNotExist) {
			require.Zero(t, promised[k], "file %d is gone", k)
			continue
		}
		require.NoError(t, err)
		d, err := f.Read(0, 1<<20)
		require.NoError(t, err)
		got := bytes.Clone(d.Bytes())
		d.Release()
		f.Put()
		is := -1
		for n, content := range versions[k] {
			if bytes.Equal(got, content) {
				is = n
			}
		}
		require.True(t, is >= 0 || len(got) == 0 && promised[k] == 0, "file %d is no version of it", k)
		require.GreaterOrEqual(t, is+1, promised[k], "file %d is older than promised", k)
	}
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, again.Read(0, b.Slice(0, len(fresh))))
	img := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(img, b.Bytes()[:len(fresh)], 0o600))
	if alone >= 0 { // the others took the mark that asks for e2fsck
		r, err := image.Repair(img)
		require.NoError(t, err)
		require.False(t, r.Damage, "%s", r.Output)
	}
	require.NoError(t, image.Check(img))
}
