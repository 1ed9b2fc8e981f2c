package disk

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// valid is a superblock of one group, 1 KiB blocks, as bytes.
func valid() []byte {
	b := make([]byte, SuperblockSize)
	put := func(off int, v uint32) { le.PutUint32(b[off:], v) }
	put(0x00, 64)   // inodes_count
	put(0x04, 4096) // blocks_count
	put(0x14, 1)    // first_data_block
	put(0x20, 8192) // blocks_per_group
	put(0x24, 8192)
	put(0x28, 64) // inodes_per_group
	le.PutUint16(b[0x38:], SuperMagic)
	put(0x4C, 1) // rev_level
	put(0x54, 11)
	le.PutUint16(b[0x58:], 256)
	return b
}

func TestSuperblockRefusals(t *testing.T) {
	_, err := DecodeSuperblock(valid())
	require.NoError(t, err)
	for _, v := range []struct {
		off, size int
		value     uint64
		why       string
	}{
		{0x38, 2, 0, "not an ext4 volume"},
		{0x18, 4, 7, "log_block_size 7"},
		{0x18, 4, 1 << 31, "log_block_size"},
		{0x58, 2, 0, "inode size 0"},
		{0x58, 2, 192, "inode size 192"},
		{0x58, 2, 2048, "inode size 2048"},
		{0x54, 4, 2, "first inode 2"},
		{0x20, 4, 0, "0 blocks a group"},
		{0x20, 4, 8200, "8200 blocks a group"},
		{0x20, 4, 4, "4 blocks a group"},
		{0x28, 4, 0, "0 inodes a group"},
		{0x28, 4, 1 << 20, "inodes a group"},
		{0x00, 4, 65, "65 inodes, but 1 groups"},
		{0x04, 4, 1, "1 blocks, of which the first is 1"},
		{0x14, 4, 0, "first_data_block is 0"},
		{0x4C, 4, 2, "revision 2"},
		{0x08, 4, 4097, "4097 of them reserved"},
		{0xCE, 2, 300, "300 reserved descriptor blocks"},
		{0x174, 1, 32, "log_groups_per_flex"},
		{0x60, 4, uint64(Incompat64Bit), "group descriptor size 0"},
		{0x64, 4, uint64(ROCompatBigalloc), ""},
	} {
		b := valid()
		for i := range v.size {
			b[v.off+i] = byte(v.value >> (8 * i))
		}
		_, err := DecodeSuperblock(b)
		if v.why == "" {
			require.NoError(t, err)
			continue
		}
		var c *CorruptError
		require.ErrorAs(t, err, &c)
		require.ErrorContains(t, err, v.why)
	}
	_, err = DecodeSuperblock(valid()[:100])
	require.ErrorContains(t, err, "100 bytes")
}

func TestFeatureNames(t *testing.T) {
	require.Equal(t, "has_journal, orphan_file, unknown feature 0x80000000", (CompatHasJournal | CompatOrphanFile | 1<<31).String())
	require.Equal(t, "filetype, unknown feature 0x20, casefold", (IncompatFiletype | IncompatCasefold | 0x20).String())
	require.Equal(t, "metadata_csum, orphan_present, unknown feature 0x20000", (ROCompatMetadataCsum | ROCompatOrphanPresent | 1<<17).String())
	require.Equal(t, "", Compat(0).String())
}

func TestCRC(t *testing.T) {
	require.EqualValues(t, 0xE3069283, ^CRC32C(^uint32(0), []byte("123456789")))
	require.EqualValues(t, 0xBB3D, CRC16(0, []byte("123456789")))
	require.Equal(t, CRC32C(7, []byte{1, 2, 3, 4}), CRC32C32(7, 0x04030201))
	require.Equal(t, CRC32C(7, []byte{1, 2, 3, 4, 5, 6, 7, 8}), CRC32C64(7, 0x0807060504030201))
	require.Equal(t, CRC32C(7, make([]byte, 2)), crc32cZeros(7, 2))
}

func TestTimes(t *testing.T) {
	for _, s := range []string{"1901-12-13T20:45:52Z", "1969-12-31T23:59:59.999999999Z", "1970-01-01T00:00:00Z",
		"2038-01-19T03:14:08.5Z", "2106-02-07T06:28:16Z", "2300-01-01T00:00:00.999999999Z", "2446-05-10T22:38:55Z"} {
		at, err := time.Parse(time.RFC3339Nano, s)
		require.NoError(t, err)
		stamp := TimestampOf(at)
		require.True(t, at.Equal(stamp.Time()))
		require.Equal(t, stamp, decodeTime(stamp.encode()), s)
		require.Equal(t, stamp, TimestampOfBits(stamp.Bits()), s)
	}
	for s, want := range map[string]int64{"1890-01-01T00:00:00Z": minTime, "1901-12-13T20:45:52.5Z": minTime, "2446-05-10T22:38:55.5Z": maxTime, "3000-01-01T00:00:00Z": maxTime} {
		at, err := time.Parse(time.RFC3339Nano, s)
		require.NoError(t, err)
		require.Equal(t, Timestamp{Sec: want}, TimestampOf(at), s)
	}
	for sec, want := range map[int64]uint64{-1: 0, 0: 0, 1 << 33: 1 << 33, 1 << 40: 1<<40 - 1} {
		require.Equal(t, want, SuperTime(time.Unix(sec, 0)))
	}
	require.Equal(t, Timestamp{Sec: maxTime}, decodeTime(Timestamp{Sec: 1 << 40}.encode()))
	require.Equal(t, Timestamp{Sec: minTime}, decodeTime(Timestamp{Sec: -1 << 40}.encode()))

	sb := &Superblock{InodeSize: 128}
	slot := make([]byte, 128)
	sb.EncodeInode(12, &Inode{Mtime: Timestamp{Sec: 1 << 33, Nsec: 5}}, slot)
	n, err := sb.DecodeInode(12, slot)
	require.NoError(t, err)
	require.Equal(t, Timestamp{Sec: maxTimeNoExtra}, n.Mtime, "without room for more bits: the latest that fits")
}

func TestSectors(t *testing.T) {
	s := &Superblock{LogBlockSize: 2}
	n := &Inode{}
	require.True(t, s.SetSectors(n, 1<<32-8))
	require.False(t, s.SetSectors(n, 1<<32))
	s.FeatureROCompat = ROCompatHugeFile
	require.True(t, s.SetSectors(n, 1<<32))
	require.Zero(t, n.Flags)
	require.True(t, s.SetSectors(n, 1<<50))
	require.EqualValues(t, FlHugeFile, n.Flags)
	require.EqualValues(t, 1<<50, s.Sectors(n))
	require.True(t, s.SetSectors(n, 8))
	require.Zero(t, n.Flags)
	require.False(t, s.SetSectors(n, 1<<52))
}

func TestDevices(t *testing.T) {
	n := &Inode{}
	for _, v := range [][2]uint32{{0, 0}, {5, 1}, {255, 255}, {256, 0}, {0, 256}, {4095, 1<<20 - 1}} {
		require.True(t, n.SetDevice(v[0], v[1]))
		major, minor := n.Device()
		require.Equal(t, v, [2]uint32{major, minor})
	}
	require.False(t, n.SetDevice(4096, 0))
	require.False(t, n.SetDevice(0, 1<<20))
}

func TestExtents(t *testing.T) {
	node := make([]byte, InodeBlockSize)
	ExtentHeader{Max: 4, Entries: 2}.Encode(node)
	for _, e := range []Extent{{1, 1, 1 << 47, false}, {1 << 31, MaxExtentLen, 7, false}, {0, MaxUnwrittenLen, 1<<48 - 1, true}} {
		PutExtent(node, 1, e)
		require.Equal(t, e, GetExtent(node, 1))
	}
	require.Panics(t, func() { PutExtent(node, 1, Extent{Len: MaxExtentLen, Unwritten: true}) })
	require.Panics(t, func() { PutExtent(node, 1, Extent{}) })
	x := ExtentIndex{Block: 9, Leaf: 1<<48 - 1}
	PutExtentIndex(node, 3, x)
	require.Equal(t, x, GetExtentIndex(node, 3))

	for _, size := range []int{1024, 2048, 4096, 1 << 16} {
		b := make([]byte, size)
		ExtentHeader{Max: uint16(MaxExtentEntries(size))}.Encode(b)
		SetExtentBlockCsum(5, b)
		require.NoError(t, VerifyExtentBlock("x", 5, b))
		require.Error(t, VerifyExtentBlock("x", 6, b))
	}
	for _, h := range []ExtentHeader{{Max: 0}, {Max: 5}, {Max: 4, Entries: 5}, {Max: 4, Depth: 6, Entries: 1}, {Max: 4, Depth: 1}} {
		h.Encode(node)
		_, err := DecodeExtentHeader("inode 12", node)
		require.ErrorContains(t, err, "inode 12: extent")
	}
}

func TestGroupRefusals(t *testing.T) {
	s, err := DecodeSuperblock(valid())
	require.NoError(t, err)
	good := GroupDesc{BlockBitmap: 3, InodeBitmap: 4, InodeTable: 5}
	b := make([]byte, GroupDescSize32)
	s.EncodeGroup(0, &good, b)
	_, err = s.DecodeGroup(0, b)
	require.NoError(t, err)
	for _, change := range []func(d *GroupDesc){
		func(d *GroupDesc) { d.BlockBitmap = 0 },
		func(d *GroupDesc) { d.BlockBitmap = 1 }, // the superblock
		func(d *GroupDesc) { d.InodeBitmap = 2 }, // the descriptors
		func(d *GroupDesc) { d.InodeBitmap = 4096 },
		func(d *GroupDesc) { d.InodeTable = 4095 },
		func(d *GroupDesc) { d.FreeBlocksCount = 8193 },
		func(d *GroupDesc) { d.FreeInodesCount = 65 },
		func(d *GroupDesc) { d.ItableUnused = 65 },
	} {
		d := good
		change(&d)
		s.EncodeGroup(0, &d, b)
		_, err = s.DecodeGroup(0, b)
		var c *CorruptError
		require.ErrorAs(t, err, &c)
	}
	s.FeatureROCompat |= ROCompatMetadataCsum
	s.EncodeGroup(0, &good, b)
	_, err = s.DecodeGroup(0, b)
	require.NoError(t, err)
	_, err = s.DecodeGroup(1, b)
	require.ErrorContains(t, err, "group descriptor 1: checksum")
}

func TestBackupGroups(t *testing.T) {
	s := &Superblock{BlocksCount: 400*8192 + 1, FirstDataBlock: 1, BlocksPerGroup: 8192, FeatureROCompat: ROCompatSparseSuper}
	require.Equal(t, []uint32{1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343}, s.BackupGroups())
}

// FuzzSuperblock takes any bytes for a superblock: what decodes can be counted with, and encodes to the same bytes.
func FuzzSuperblock(f *testing.F) {
	f.Add(valid())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSuperblock(b)
		if err != nil {
			return
		}
		g := s.Groups() - 1
		require.Positive(t, s.BlocksInGroup(g))
		s.InodeLocation(s.InodesCount)
		s.DescBlock(s.DescBlocks() - 1)
		s.BaseMetaBlocks(g)
		if s.FlexSize() == 0 || s.DescSize() > s.BlockSize() {
			t.Fatal("cannot be counted with")
		}
		sum := s.Checksum
		out := make([]byte, SuperblockSize)
		s.Encode(out)
		if s.MetadataCsum() {
			le.PutUint32(out[0x3FC:], sum)
		}
		require.Equal(t, b[:SuperblockSize], out)
	})
}

// FuzzInode takes any bytes for an inode: what decodes encodes to the same bytes, but for what no clock can show.
func FuzzInode(f *testing.F) {
	f.Add(make([]byte, 256))
	f.Add(bytes.Repeat([]byte{0x1c}, 256))
	s := &Superblock{InodeSize: 256, FeatureROCompat: ROCompatHugeFile, FeatureIncompat: Incompat64Bit}
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, 256)
		copy(b, in)
		n, err := s.DecodeInode(12, b)
		if err != nil {
			return
		}
		_ = s.VerifyInode(12, &n, b)
		_ = n.XattrArea(b)
		n.Device()
		s.Sectors(&n)
		out := bytes.Clone(b)
		s.EncodeInode(12, &n, out)
		again, err := s.DecodeInode(12, out)
		require.NoError(t, err)
		require.Equal(t, n, again)
		for _, off := range []int{0x84, 0x88, 0x8C, 0x94} { // nanoseconds beyond a second become 0
			clear(b[off : off+4])
			clear(out[off : off+4])
		}
		require.Equal(t, b, out)
	})
}

// FuzzExtentHeader takes any bytes for a node: the entries of one that decodes can be read.
func FuzzExtentHeader(f *testing.F) {
	b := make([]byte, InodeBlockSize)
	ExtentHeader{Max: 4, Entries: 4}.Encode(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < ExtentHeaderSize {
			return
		}
		h, err := DecodeExtentHeader("node", b)
		if err != nil {
			return
		}
		for i := range int(h.Max) {
			GetExtent(b, i)
			GetExtentIndex(b, i)
		}
		_ = VerifyExtentBlock("node", 1, b)
	})
}
