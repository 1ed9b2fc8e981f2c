package jbd2

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func layouts() []*layout {
	var l []*layout
	for _, bs := range []int{1024, 4096, 65536} {
		for _, f := range []Features{0, Feature64Bit, FeatureChecksumV2, FeatureChecksumV2 | Feature64Bit, FeatureChecksumV3,
			FeatureChecksumV3 | Feature64Bit} {
			x := &layout{features: f, blockSize: bs, uuid: [16]byte{1, 2, 3}}
			x.seed = crc32c(^uint32(0), x.uuid[:])
			l = append(l, x)
		}
	}
	return l
}

func TestTagSizes(t *testing.T) {
	for f, want := range map[Features]int{0: 8, Feature64Bit: 12, FeatureChecksumV2: 10, FeatureChecksumV2 | Feature64Bit: 14,
		FeatureChecksumV3: 16, FeatureChecksumV3 | Feature64Bit: 16} {
		require.Equal(t, want, (&layout{features: f}).tagSize(), "%v", f)
	}
}

func TestDescriptorRoundTrip(t *testing.T) {
	for _, l := range layouts() {
		t.Run(fmt.Sprintf("%d %v", l.blockSize, l.features), func(t *testing.T) {
			for _, n := range []int{1, 2, l.tagsPerBlock() - 1, l.tagsPerBlock()} {
				var tags []tag
				for i := range n {
					g := tag{block: Block(i) * 0x1001, sum: uint32(i) * 0x01010101, flags: uint32(i % 2)}
					if l.features&Feature64Bit != 0 {
						g.block += 1 << 40
					}
					switch {
					case l.features&FeatureChecksumV3 != 0:
					case l.features&FeatureChecksumV2 != 0:
						g.sum &= 0xffff
					default:
						g.sum = 0
					}
					tags = append(tags, g)
				}
				p := bytes.Repeat([]byte{0xff}, l.blockSize)
				l.putDescriptor(p, 9, tags)
				require.True(t, l.tailOK(p))
				require.Equal(t, header{magic, typeDescriptor, 9}, readHeader(p))
				got, err := l.parseTags(p)
				require.NoError(t, err)
				require.Len(t, got, n)
				for i := range got {
					got[i].flags &= tagEscape
				}
				require.Equal(t, tags, got)
				if l.features.checksums() {
					p[100] ^= 1
					require.False(t, l.tailOK(p))
				}
			}
		})
	}
}

func TestRevokeRoundTrip(t *testing.T) {
	for _, l := range layouts() {
		var blocks []Block
		for i := range l.revokesPerBlock() {
			blocks = append(blocks, Block(i)*3)
		}
		p := make([]byte, l.blockSize)
		l.putRevoke(p, 9, blocks)
		require.True(t, l.tailOK(p))
		var got []Block
		require.NoError(t, l.eachRevoke(p, func(b Block) { got = append(got, b) }))
		require.Equal(t, blocks, got)
		be.PutUint32(p[12:], uint32(l.blockSize+1))
		require.ErrorIs(t, l.eachRevoke(p, func(Block) {}), ErrCorrupt)
		be.PutUint32(p[12:], 15)
		require.ErrorIs(t, l.eachRevoke(p, func(Block) {}), ErrCorrupt)
	}
}

func TestTornCommitBlock(t *testing.T) {
	for _, l := range layouts() {
		p := make([]byte, l.blockSize)
		l.putCommit(p, 7, time.Unix(1700000000, 5))
		require.True(t, l.commitOK(p))
		sec, nsec := commitTime(p)
		require.EqualValues(t, 1700000000, sec)
		require.EqualValues(t, 5, nsec)
		// The first sector arrived, the others hold what was there before.
		copy(p[512:], bytes.Repeat([]byte{0x55}, l.blockSize-512))
		require.True(t, l.commitOK(p))
		if l.features.checksums() {
			p[50] ^= 1
			require.False(t, l.commitOK(p))
		}
	}
}

func TestChecksums(t *testing.T) {
	// The check values of CRC-32C and of CRC-32/MPEG-2, "123456789".
	require.EqualValues(t, 0xe3069283, ^crc32c(^uint32(0), []byte("123456789")))
	require.EqualValues(t, 0x0376e6e7, crc32be(^uint32(0), []byte("123456789")))
	require.EqualValues(t, crc32.Checksum([]byte("abc"), castagnoli), ^crc32c(crc32c(^uint32(0), []byte("a")), []byte("bc")))
}

func TestSuperblock(t *testing.T) {
	s := &superblock{blockType: typeSuperblockV2, sequence: 5, start: 3, incompat: FeatureChecksumV3, sumType: checksumCRC32C,
		raw: make([]byte, 1024)}
	p := make([]byte, 1024)
	s.put(p)
	got, err := parseSuper(p)
	require.NoError(t, err)
	require.EqualValues(t, 5, got.sequence)
	require.EqualValues(t, 3, got.start)
	for name, tc := range map[string]struct {
		change func(p []byte)
		err    error
	}{
		"magic":            {func(p []byte) { p[0] = 0 }, ErrCorrupt},
		"type":             {func(p []byte) { p[7] = 1 }, ErrCorrupt},
		"checksum":         {func(p []byte) { p[0x1f]++ }, ErrCorrupt},
		"unknown incompat": {func(p []byte) { p[0x2a] = 1 }, ErrUnsupported},
		"ro compat":        {func(p []byte) { p[0x2f] = 1 }, ErrUnsupported},
		"two checksums":    {func(p []byte) { p[0x2b] |= 8 }, ErrCorrupt},
		"checksum type":    {func(p []byte) { p[0x50] = 1 }, ErrUnsupported},
	} {
		q := bytes.Clone(p)
		tc.change(q)
		_, err := parseSuper(q)
		require.ErrorIs(t, err, tc.err, name)
	}
	_, err = parseSuper(p[:100])
	require.ErrorIs(t, err, ErrCorrupt)
	// Version 1 has no features: what lies behind s_errno means nothing.
	p[7] = typeSuperblockV1
	p[0x28] = 0xff
	got, err = parseSuper(p)
	require.NoError(t, err)
	require.Zero(t, got.incompat)
	got.upgrade()
	got.put(p)
	require.Equal(t, "00000000", hex.EncodeToString(p[0x28:0x2c]))
	require.EqualValues(t, 4, p[7])
}

func TestTIDsWrap(t *testing.T) {
	require.True(t, TID(1).After(0xffffffff))
	require.False(t, TID(0xffffffff).After(1))
	require.False(t, TID(7).After(7))
}

func TestFeatureNames(t *testing.T) {
	require.Equal(t, "64bit,checksum_v3,0x40", (Feature64Bit | FeatureChecksumV3 | 0x40).String())
	require.Equal(t, "none", Features(0).String())
}

func FuzzDescriptor(f *testing.F) {
	for i, l := range layouts()[:6] {
		p := make([]byte, l.blockSize)
		l.putDescriptor(p, 1, []tag{{block: 5}, {block: 6}})
		f.Add(uint8(i), p)
		l.putRevoke(p, 1, []Block{7, 8})
		f.Add(uint8(i), p)
	}
	f.Fuzz(func(t *testing.T, i uint8, p []byte) {
		l := layouts()[i%6]
		q := make([]byte, l.blockSize)
		copy(q, p)
		tags, err := l.parseTags(q)
		if err == nil && len(tags) > l.blockSize/l.tagSize() {
			t.Errorf("%d tags in a block", len(tags))
		}
		n := 0
		if err := l.eachRevoke(q, func(Block) { n++ }); err == nil && n > l.blockSize/4 {
			t.Errorf("%d revokes in a block", n)
		}
	})
}

// FuzzLog opens and scans whatever is in the journal's blocks.
func FuzzLog(f *testing.F) {
	const bs, blocks, length = 1024, 80, 40
	mapping := func(n uint32) (Block, uint32, error) { return Block(30 + n), length - n, nil }
	for _, sum := range []Features{0, FeatureChecksumV2, FeatureChecksumV3 | Feature64Bit, FeatureAsyncCommit | FeatureChecksumV3} {
		img := make([]byte, length*bs)
		sb := &superblock{blockType: typeSuperblockV2, blockSize: bs, sequence: 3, start: 1, incompat: sum, raw: make([]byte, bs)}
		if sum.checksums() {
			sb.sumType = checksumCRC32C
		}
		be.PutUint32(sb.raw[0x0c:], bs)
		be.PutUint32(sb.raw[0x10:], length)
		be.PutUint32(sb.raw[0x14:], 1)
		sb.put(img)
		lay := sb.layout()
		fillBlock(img[2*bs:3*bs], 14)
		lay.putDescriptor(img[bs:2*bs], 3, []tag{{block: 5, sum: lay.dataSum(3, img[2*bs:3*bs])}})
		lay.putRevoke(img[3*bs:4*bs], 3, []Block{9})
		lay.putCommit(img[4*bs:5*bs], 3, time.Unix(1, 0))
		f.Add(img[:6*bs])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		d := newTestDevice(bs*blocks, 512)
		copy(d.image[30*bs:(30+length)*bs], p)
		copy(d.durable, d.image)
		// A checksum of the superblock would keep the fuzzer from getting any further.
		super := d.image[30*bs:][:bs]
		if Features(be.Uint32(super[0x28:])).checksums() {
			be.PutUint32(super[0xfc:], superSum(super))
		}
		c, err := NewCache(d, bs, CacheOptions{})
		require.NoError(t, err)
		defer c.Close()
		l, err := OpenLog(c, length, mapping)
		if err != nil {
			return
		}
		r, err := l.Scan()
		if err != nil {
			return
		}
		if r.Blocks() > length {
			t.Errorf("%d blocks in a log of %d", r.Blocks(), length)
		}
		require.NoError(t, r.Replay(nil))
		_ = r.FastCommits(func(FCRecord) error { return nil })
		require.NoError(t, r.Finish())
		l, err = OpenLog(c, length, mapping)
		require.NoError(t, err)
		r, err = l.Scan()
		require.NoError(t, err)
		require.False(t, r.Needed())
	})
}

func TestLogMapRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		f    MapFunc
		want string
	}{
		"hole":    {func(n uint32) (Block, uint32, error) { return 5, 0, nil }, "not mapped"},
		"outside": {func(n uint32) (Block, uint32, error) { return 95, 10, nil }, "outside of the volume"},
		"zero":    {func(n uint32) (Block, uint32, error) { return 0, 10, nil }, "outside of the volume"},
		"huge":    {func(n uint32) (Block, uint32, error) { return 1<<64 - 2, 10, nil }, "outside of the volume"},
		"overlap": {func(n uint32) (Block, uint32, error) { return 20 + Block(n/2), 5, nil }, "overlap"},
	} {
		_, err := newLogMap(10, 100, tc.f)
		require.ErrorIs(t, err, ErrCorrupt, name)
		require.ErrorContains(t, err, tc.want, name)
	}
	m, err := newLogMap(100, 1000, func(n uint32) (Block, uint32, error) { return Block(900 - n/10*20 + n%10), 10 - n%10, nil })
	require.NoError(t, err)
	for n := range uint32(100) {
		b, run := m.at(n)
		require.Equal(t, Block(900-n/10*20+n%10), b)
		require.Equal(t, 10-n%10, run)
		require.True(t, m.holds(b))
	}
	require.False(t, m.holds(899))
	require.False(t, m.holds(910))
	require.False(t, m.holds(0))
}
