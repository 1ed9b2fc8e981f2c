package disk

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEncodeStable: whichever of the superblocks that a mount writes the two sectors are from, the checksum is right.
func TestEncodeStable(t *testing.T) {
	full := strings.Repeat("x", 64)
	for name, c := range map[string]struct{ mounted, first, last string }{
		"short":             {"/mnt/somewhere", "", ""},
		"59 bytes":          {full[:59], "", ""},
		"60 bytes":          {full[:60], "", ""},
		"full":              {full, "", ""},
		"full, errors":      {full, "ext4_lookup", "lanefs"},
		"full, a long name": {full, full[:31], "lanefs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Superblock{FeatureROCompat: ROCompatMetadataCsum, ChecksumType: 1, BlocksCount: 1 << 20, RevLevel: 1}
			copy(s.LastMounted[:], c.mounted)
			copy(s.FirstErrorFunc[:], c.first)
			copy(s.LastErrorFunc[:], c.last)
			r := rand.New(rand.NewPCG(1, 1))
			old, now := make([]byte, SuperblockSize), make([]byte, SuperblockSize)
			s.Encode(old)
			for range 1000 {
				s.FreeBlocksCount = r.Uint64N(1 << 20)
				s.FreeInodesCount, s.LastOrphan = r.Uint32(), r.Uint32()
				s.Wtime = uint64(r.Uint32())
				s.State ^= StateValid
				s.FeatureIncompat ^= IncompatRecover
				s.EncodeStable(now)
				torn := append(append([]byte{}, old[:512]...), now[512:]...)
				for _, b := range [][]byte{now, torn, append(append([]byte{}, now[:512]...), old[512:]...)} {
					var d Superblock
					copy(d.raw[:], b)
					d.fields(codec{b: d.raw[:], decode: true})
					require.NoError(t, d.VerifyChecksum())
					require.Equal(t, c.mounted, cString(d.LastMounted[:]))
					require.Equal(t, c.first, cString(d.FirstErrorFunc[:]))
					require.Equal(t, c.last, cString(d.LastErrorFunc[:]))
				}
				require.Equal(t, s.FreeInodesCount, le.Uint32(now[0x10:]))
				copy(old, now)
			}
		})
	}
}

// Where there is no room for that the checksum is another one, but a right one; and there may be none.
func TestEncodeStableNot(t *testing.T) {
	s := &Superblock{FeatureROCompat: ROCompatMetadataCsum, ChecksumType: 1, BlocksCount: 1 << 20, RevLevel: 1}
	for _, text := range [][]byte{s.LastMounted[:], s.FirstErrorFunc[:], s.LastErrorFunc[:]} {
		for i := range text {
			text[i] = 'x'
		}
	}
	now := make([]byte, SuperblockSize)
	s.EncodeStable(now)
	require.Equal(t, CRC32C(^uint32(0), now[:0x3FC]), le.Uint32(now[0x3FC:]))
	s.FeatureROCompat = 0
	s.EncodeStable(now)
	require.Equal(t, s.raw[:], now)
}

func TestCRC32CBack(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 200 {
		b := make([]byte, r.IntN(50))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		seed := r.Uint32()
		require.Equal(t, seed, crc32cBack(CRC32C(seed, b), b))
	}
}
