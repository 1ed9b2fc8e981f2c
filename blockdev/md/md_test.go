package md

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
	"github.com/lanefs/lanefs/blockdev/md/mdtest"
)

// raid0 has chunks of 64 KiB and says that its layout is the alternate one.
var raid0 = mdtest.Array{Set: 1, Minor: 2, Chunk: 128, Features: featureRAID0Layout, Layout: layoutAlternate}

// devices are members of a, with these sizes in KiB.
func devices(t *testing.T, a mdtest.Array, blockSize int64, sizes ...int64) (all []Member) {
	t.Helper()
	a.Disks = len(sizes)
	for role, n := range sizes {
		d := blockdev.NewMem(n<<10, blockSize)
		t.Cleanup(func() { d.Close() })
		require.NoError(t, a.Write(d.File(), n<<10, role))
		all = append(all, Member{fmt.Sprintf("disk%d", role), d})
	}
	return all
}

func disk(m Member) *blockdev.TestDevice { return m.Dev.(*blockdev.TestDevice) }

// TestConform: an array is a block device like any other, in each layout, and leaves its metadata alone.
func TestConform(t *testing.T) {
	original, linear, small := raid0, raid0, raid0
	original.Layout = layoutOriginal
	linear.Level, linear.Features, linear.Layout, linear.Minor, linear.Chunk = levelLinear, 0, 0, 0, 8
	small.Chunk, small.Minor = 8, 1
	for _, c := range []struct {
		name  string
		array mdtest.Array
		block int64
		sizes []int64
	}{
		{"alike", raid0, 512, []int64{8192, 8192}},
		{"three zones", raid0, 512, []int64{4096, 2048, 9000, 4096}},
		{"three zones, original", original, 512, []int64{4096, 2048, 9000, 4096}},
		{"4 KiB blocks and chunks", small, 4096, []int64{5000, 3000, 6000}},
		{"linear", linear, 512, []int64{3000, 8000}},
		{"one member", raid0, 512, []int64{12000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
				all := devices(t, c.array, c.block, c.sizes...)
				var before [][]byte
				for _, m := range all {
					before = append(before, reserved(t, m))
				}
				d, err := Open([]Member{all[len(all)-1], all[0]}[:min(2, len(all))])
				if len(all) > 2 {
					require.ErrorContains(t, err, "is missing")
				}
				if len(all) != 2 {
					d, err = Open(append(all[1:len(all):len(all)], all[0])) // in any order
				}
				require.NoError(t, err)
				t.Cleanup(func() {
					for i, m := range all {
						require.Equal(t, before[i], reserved(t, m))
						require.Zero(t, disk(m).Outstanding())
					}
				})
				return d
			})
		})
	}
}

// reserved is what of a member is not the array's data.
func reserved(t *testing.T, m Member) []byte {
	t.Helper()
	s, err := Find(m.Dev)
	require.NoError(t, err)
	b := make([]byte, m.Dev.Info().Size())
	_, err = disk(m).File().ReadAt(b, 0)
	require.NoError(t, err)
	clear(b[s.DataOffset*sector : (s.DataOffset+s.DataSize)*sector])
	return b
}

// TestZones holds the arithmetic of zones against itself: every piece of an array has one place, no two the same, and back finds it; of any
// range the parts on members are what before says.
func TestZones(t *testing.T) {
	const chunk = 4
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		sizes := make([]blockdev.Bytes, 1+rng.IntN(5))
		var total blockdev.Bytes
		for i := range sizes {
			sizes[i] = blockdev.Bytes(1+rng.IntN(9)) * chunk
			total += sizes[i]
		}
		list := stripedZones(sizes, chunk)
		if round%3 == 0 {
			list = linearZones(sizes)
		}
		require.Equal(t, total, list[len(list)-1].end)
		type place struct {
			m  int
			at blockdev.Bytes
		}
		seen := map[place]bool{}
		for off := range total {
			z := find(list, off)
			m, at, left := z.locate(off)
			require.Less(t, at, sizes[m])
			require.False(t, seen[place{m, at}], "twice")
			seen[place{m, at}] = true
			was, rest := back(list, m, at)
			require.Equal(t, off, was)
			require.Equal(t, left, rest)
		}
		for range 20 {
			z := list[rng.IntN(len(list))]
			from := z.start + blockdev.Bytes(rng.Int64N(int64(z.end-z.start)))
			to := from + blockdev.Bytes(rng.Int64N(int64(z.end-from))) + 1
			for column, m := range z.members {
				n := blockdev.Bytes(0)
				for off := from; off < to; off++ {
					if on, at, _ := z.locate(off); on == m {
						require.Equal(t, z.first+z.before(from, column)+n, at)
						n++
					}
				}
				require.Equal(t, n, z.before(to, column)-z.before(from, column))
			}
		}
	}
}

// TestSplit: a long read is one request for each member, and so is a long discard; a short one goes to its member alone.
func TestSplit(t *testing.T) {
	all := devices(t, raid0, 512, 8192, 8192)
	d, err := Open(all)
	require.NoError(t, err)
	var seen [2][]blockdev.Event
	for i, m := range all {
		disk(m).Observe(func(e blockdev.Event) { seen[i] = append(seen[i], e) })
	}
	b, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	defer b.Release()
	data := blockdev.Bytes(8192)
	require.NoError(t, d.Read(32<<10, b.Slice(0, 512<<10)))
	require.Equal(t, [2][]blockdev.Event{
		{{Op: blockdev.OpRead, Off: data + 32<<10, Len: 256 << 10}},
		{{Op: blockdev.OpRead, Off: data, Len: 256 << 10}},
	}, seen)
	seen = [2][]blockdev.Event{}
	require.NoError(t, d.Discard(64<<10, 1<<20))
	require.NoError(t, d.Write(64<<10, true, b.Slice(0, 4096)))
	require.NoError(t, d.Flush())
	require.Equal(t, [2][]blockdev.Event{
		{{Op: blockdev.OpDiscard, Off: data + 64<<10, Len: 512 << 10}, {Op: blockdev.OpFlush}},
		{{Op: blockdev.OpDiscard, Off: data, Len: 512 << 10}, {Op: blockdev.OpWrite, Off: data, Len: 4096, FUA: true}, {Op: blockdev.OpFlush}},
	}, seen)
}

// TestErrors: what one member fails with fails the request that it was part of, and no other; it says which member, and where in the array.
func TestErrors(t *testing.T) {
	all := devices(t, raid0, 512, 8192, 8192)
	d, err := Open(all)
	require.NoError(t, err)
	b, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	defer b.Release()
	// The third chunk of disk1 is the sixth of the array.
	remove := disk(all[1]).Inject(blockdev.Fault{Op: blockdev.OpWrite, Off: 8192 + 2*65536 + 512, Len: 512})
	bad := &blockdev.Request{Op: blockdev.OpWrite, Off: 5*65536 + 512, Bufs: []blockdev.Slice{b.Slice(0, 1024)}}
	good := &blockdev.Request{Op: blockdev.OpWrite, Off: 0, Bufs: []blockdev.Slice{b.Slice(0, 256<<10)}}
	err = d.Do(good, bad)
	require.NoError(t, good.Err)
	var e *blockdev.Error
	require.ErrorAs(t, err, &e)
	require.Same(t, e, bad.Err)
	require.ErrorIs(t, err, blockdev.ErrFault)
	require.EqualValues(t, 5*65536+512, e.Off)
	require.EqualValues(t, 1024, e.Len)
	require.EqualValues(t, e.Off/512, e.LBA)
	require.ErrorContains(t, err, "member disk1")
	remove()

	// A flush that one member fails has failed. One that both fail, one of them for lack of room, fails with the other's error.
	remove = disk(all[1]).Inject(blockdev.Fault{Op: blockdev.OpFlush})
	require.ErrorContains(t, d.Flush(), "flush: member disk1: injected fault")
	disk(all[0]).Inject(blockdev.Fault{Err: blockdev.ErrNoSpace})
	err = d.Do(&blockdev.Request{Op: blockdev.OpFlush})
	require.NotErrorIs(t, err, blockdev.ErrNoSpace)
	remove()
	require.ErrorIs(t, d.Write(0, false, b.Slice(0, 4096)), blockdev.ErrNoSpace)
}

// TestPowerCut: after a flush nothing of either member is lost, whatever the order of the writes was; before, only what was not flushed.
func TestPowerCut(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		all := devices(t, raid0, 512, 4096, 2048, 3000)
		for _, m := range all {
			disk(m).CacheWrites()
		}
		d, err := Open(all)
		require.NoError(t, err)
		n := int(d.Info().Size())
		b, err := d.Alloc(n)
		require.NoError(t, err)
		held, last := make([]byte, n), make([]byte, n)
		for range 60 {
			off := rng.IntN(n/512) * 512
			size := min(n-off, (1+rng.IntN(512))*512)
			for i := range size {
				b.Bytes()[i] = byte(rng.Uint32())
			}
			fua := rng.IntN(4) == 0
			require.NoError(t, d.Write(blockdev.Bytes(off), fua, b.Slice(0, size)))
			copy(last[off:], b.Bytes()[:size])
			if fua {
				copy(held[off:], b.Bytes()[:size])
			}
			if rng.IntN(5) == 0 {
				require.NoError(t, d.Flush())
				copy(held, last)
			}
		}
		for _, m := range all {
			require.NoError(t, disk(m).Cut(nil))
		}
		require.NoError(t, d.Read(0, b.Slice(0, n)))
		require.True(t, bytes.Equal(held, b.Bytes()[:n]), "seed %d", seed)
		b.Release()
		for _, m := range all {
			m.Dev.Close()
		}
	}
}

// TestRefused: what is not one whole array is refused by name, with what to do.
func TestRefused(t *testing.T) {
	put := func(at int, v uint32) mdtest.Change {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	for _, c := range []struct {
		name   string
		sizes  []int64
		change func(a *mdtest.Array)
		super  mdtest.Change // of disk1
		raw    func(d *blockdev.TestDevice)
		given  []int // of the members; nil: all
		want   string
	}{
		{name: "half", given: []int{0}, want: `"lab:test" (01010101:01010101:01010101:01010101) has 2 members, and number 1 is missing: name all of them`},
		{name: "twice", given: []int{0, 0, 1}, want: "disk0 and disk0 are both member 0"},
		{name: "none", raw: func(d *blockdev.TestDevice) { d.File().WriteAt(make([]byte, 4096), 4096) }, want: "disk1 has no md metadata"},
		{name: "foreign", super: put(0x10, 99), want: "disk0 belongs to the md array"},
		{name: "checksum", raw: func(d *blockdev.TestDevice) { d.File().WriteAt([]byte{1}, 4096+0xc0) }, want: "disk1: its md superblock is damaged: it has checksum"},
		{name: "chunk differs", super: put(0x58, 64), want: "say different things"},
		{name: "raid1", change: func(a *mdtest.Array) { a.Level, a.Features = 1, 0 }, want: "is of level raid1, and LaneFS assembles raid0 and linear"},
		{name: "raid10", change: func(a *mdtest.Array) { a.Level, a.Features = 10, 0 }, want: "is of level raid10"},
		{name: "level 77", change: func(a *mdtest.Array) { a.Level, a.Features = 77, 0 }, want: "is of level level 77"},
		{name: "reshape", change: func(a *mdtest.Array) { a.Features |= featureReshape }, want: "is being reshaped"},
		{name: "journal", change: func(a *mdtest.Array) { a.Features |= featureJournal }, want: "has a journal"},
		{name: "rebuilt", super: func(b []byte) { b[8] |= featureRecovery }, want: "is being rebuilt"},
		{name: "features", change: func(a *mdtest.Array) { a.Features |= 1 << 20 }, want: "features that LaneFS does not know (0x101000)"},
		{name: "layout of a linear", change: func(a *mdtest.Array) { a.Level = levelLinear }, want: "has the layout of a raid0"},
		{name: "no chunk", change: func(a *mdtest.Array) { a.Chunk = 0 }, want: "its chunks are empty"},
		{name: "no members", super: nil, change: nil, given: []int{}, want: "needs members"},
		{name: "spare", super: func(b []byte) { binary.LittleEndian.PutUint16(b[256+2:], roleSpare) }, want: "disk1 is a spare"},
		{name: "faulty", super: func(b []byte) { binary.LittleEndian.PutUint16(b[256+2:], roleFaulty) }, want: "disk1 is a faulty member"},
		{name: "journal device", super: func(b []byte) { binary.LittleEndian.PutUint16(b[256+2:], roleJournal) }, want: "disk1 is the journal"},
		{name: "role", super: func(b []byte) { binary.LittleEndian.PutUint16(b[256+2:], 5) }, want: "disk1 says that it is member 5"},
		{name: "number", super: put(0xa0, 1000), want: "disk1 is a spare"},
		{name: "left behind", super: put(0xc8, 5), want: "disk1 was left behind"},
		{name: "shrunk", super: put(0x88, 1<<20), want: "is the device shorter than it was?"},
		{name: "overflow", super: func(b []byte) { put(0x80, ^uint32(0))(b); put(0x84, ^uint32(0))(b); put(0x88, 64)(b) }, want: "is the device shorter than it was?"},
		{name: "data in metadata", super: put(0x80, 8), want: "in its md superblock"},
		{name: "roles", super: nil, raw: func(d *blockdev.TestDevice) { d.File().WriteAt([]byte{0xff, 0xff, 0, 0}, 4096+0xdc) }, want: "disk1: its md superblock is damaged: it has 65535 roles"},
		{name: "no layout", sizes: []int64{4096, 8192, 8192}, change: func(a *mdtest.Array) { a.Features, a.Layout = 0, 0 }, want: "does not say in which of its two layouts (layout 0): mdadm --assemble --update=layout-original"},
		{name: "layout 3", sizes: []int64{4096, 8192, 8192}, change: func(a *mdtest.Array) { a.Layout = 3 }, want: "(layout 3)"},
		{name: "version 0.90", raw: func(d *blockdev.TestDevice) {
			d.File().WriteAt(make([]byte, 4096), 4096)
			d.File().WriteAt([]byte{0xfc, 0x4e, 0x2b, 0xa9}, 8192<<10-64<<10)
		}, want: "disk1: it has md metadata of version 0.90"},
		{name: "no room", sizes: []int64{64, 64}, want: "has no room for data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := raid0
			if c.change != nil {
				c.change(&a)
			}
			if c.sizes == nil {
				c.sizes = []int64{8192, 8192}
			}
			all := devices(t, a, 512, c.sizes...)
			if a.Disks = len(c.sizes); c.super != nil {
				require.NoError(t, a.Write(disk(all[1]).File(), c.sizes[1]<<10, 1, c.super))
			}
			if c.raw != nil {
				c.raw(disk(all[1]))
			}
			given := all
			if c.given != nil {
				given = nil
				for _, i := range c.given {
					given = append(given, all[i])
				}
			}
			_, err := Open(given)
			require.ErrorContains(t, err, c.want)
		})
	}
	// What needs no layout has none to refuse: all alike, or one member alone in the second zone.
	bare := raid0
	bare.Features, bare.Layout = 0, 0
	for _, sizes := range [][]int64{{4096, 4096, 4096}, {4096, 8192}} {
		_, err := Open(devices(t, bare, 512, sizes...))
		require.NoError(t, err)
	}
	// Of two superblocks the newer counts, though it is at another place; the member of the older array is one no more.
	all := devices(t, raid0, 512, 8192, 8192)
	old := raid0
	old.Minor, old.Set, old.Disks, old.Level = 0, 9, 2, 5
	require.NoError(t, old.Write(disk(all[0]).File(), 8192<<10, 0, func(b []byte) { clear(b[0x40:0x48]) }))
	_, err := Open(all)
	require.NoError(t, err)
	// Reading may fail.
	disk(all[1]).Inject(blockdev.Fault{Op: blockdev.OpRead, Err: errors.New("no such sector")})
	_, err = Open(all)
	require.ErrorContains(t, err, "disk1: read of 4096 bytes at 4096 (LBA 8): no such sector")
	// 4 KiB blocks cannot hold data that begin within one, nor chunks of less.
	odd := raid0
	odd.Data = 17
	_, err = Open(devices(t, odd, 4096, 8192, 8192))
	require.ErrorContains(t, err, "within a block of 4096")
	odd.Data, odd.Chunk = 16, 4
	_, err = Open(devices(t, odd, 4096, 8192, 8192))
	require.ErrorContains(t, err, "pieces of 2048 bytes, not a multiple of a block of 4096")
}

// FuzzFind: no superblock makes Find or Open panic, or an array reach beyond its members.
func FuzzFind(f *testing.F) {
	a := raid0
	a.Disks = 1
	m := blockdev.NewMem(1<<20, 512)
	defer m.Close()
	require.NoError(f, a.Write(m.File(), 1<<20, 0))
	b := make([]byte, 512)
	m.File().ReadAt(b, 4096)
	f.Add(b)
	f.Add(b[:0xdd])
	f.Fuzz(func(t *testing.T, b []byte) {
		d := blockdev.NewMem(1<<20, 512)
		defer d.Close()
		if len(b) >= 0xdc+2 {
			n := min(rolesAt+2*int(binary.LittleEndian.Uint16(b[0xdc:])), len(b))
			binary.LittleEndian.PutUint32(b[0xd8:], checksum(b[:n])) // else nothing gets any further
		}
		d.File().WriteAt(b[:min(len(b), superSize)], 4096)
		dev, err := Open([]Member{{"disk", d}})
		if err != nil {
			return
		}
		i := dev.Info()
		buf, _ := dev.Alloc(int(i.BlockSize))
		defer buf.Release()
		for _, off := range []blockdev.Bytes{0, i.Size() / 2 / i.BlockSize * i.BlockSize, i.Size() - i.BlockSize} {
			require.NoError(t, dev.Read(off, buf.Slice(0, int(i.BlockSize))))
		}
	})
}
