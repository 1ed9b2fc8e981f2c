package disk

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEncodeStable: whichever of the superblocks that a mount writes the two sectors are from, the checksum is right.
func TestEncodeStable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := &Superblock{FeatureROCompat: ROCompatMetadataCsum, ChecksumType: 1, BlocksCount: 1 << 20, RevLevel: 1}
	copy(s.LastMounted[:], "/mnt/somewhere")
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
			require.Equal(t, "/mnt/somewhere", cString(d.LastMounted[:]))
		}
		require.Equal(t, s.FreeInodesCount, le.Uint32(now[0x10:]))
		copy(old, now)
	}
	for i := range s.LastMounted {
		s.LastMounted[i] = 'x' // no room: another checksum, but a right one
	}
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
