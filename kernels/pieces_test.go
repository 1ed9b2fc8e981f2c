package kernels

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// pieceBytes is the size of a piece: destination, source and bytes.
const pieceBytes = 24

// openPieces opens a kernel of the host's image. end closes all of it, and memory before the runtime, which finds leaks.
func openPieces(t *testing.T, kernel string) (rt gpu.Runtime, f gpu.Function, stream gpu.Stream, end func(...gpu.Memory)) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	image, err := os.ReadFile("../sdk/c/images/host-" + rt.Facts().Arch + ".so")
	if os.IsNotExist(err) {
		t.Skipf("there is no image of the kernel for %s", rt.Facts().Arch)
	}
	require.NoError(t, err)
	module, err := rt.Load(image)
	require.NoError(t, err)
	f, err = module.Function(kernel)
	require.NoError(t, err)
	stream, err = rt.NewStream()
	require.NoError(t, err)
	return rt, f, stream, func(memory ...gpu.Memory) {
		require.NoError(t, stream.Close())
		require.NoError(t, module.Close())
		for _, m := range memory {
			require.NoError(t, m.Close())
		}
		require.NoError(t, rt.Close())
	}
}

// TestPieces copies pieces of every alignment and of sizes around those at which the kernel changes its way, and nothing beside them.
func TestPieces(t *testing.T) {
	rt, f, stream, end := openPieces(t, "lanefs_gather")

	const room = 512 // bytes for a piece and what is around it
	var pieces []byte
	var want [][3]int // destination, source, bytes
	for dst := range 16 {
		for src := range 16 {
			for _, n := range []int{0, 1, 3, 15, 16, 17, 31, 127, 128, 129, 255, 300} {
				want = append(want, [3]int{len(want)*room + 64 + dst, len(want)*room + 64 + src, n})
			}
		}
	}
	from, to := alloc(t, rt, len(want)*room), alloc(t, rt, len(want)*room)
	table := alloc(t, rt, len(want)*pieceBytes)
	fill := rand.NewChaCha8([32]byte{1})
	fill.Read(from.Host())
	fill.Read(to.Host())
	expected := append([]byte(nil), to.Host()...)
	for _, p := range want {
		for _, word := range []uint64{uint64(to.Addr()) + uint64(p[0]), uint64(from.Addr()) + uint64(p[1]), uint64(p[2])} {
			pieces = binary.LittleEndian.AppendUint64(pieces, word)
		}
		copy(expected[p[0]:], from.Host()[p[1]:][:p[2]])
	}
	copy(table.Host(), pieces)
	require.NoError(t, stream.Launch(f, gpu.Dim3{X: 4, Y: 1, Z: 1}, gpu.Dim3{X: 512, Y: 1, Z: 1}, uint64(table.Addr()), uint64(len(want))))
	require.NoError(t, stream.Wait(time.Minute))
	require.True(t, string(expected) == string(to.Host()), "the pieces, and nothing else, are copied")

	end(from, to, table)
}

// TestPut copies as many sixteen bytes as there are around where the kernel changes its way, and nothing beside them, and stores its number.
func TestPut(t *testing.T) {
	rt, f, stream, end := openPieces(t, "lanefs_put")
	const most, threads, number = 66 << 10, 256, 0x100000007
	from, to, word := alloc(t, rt, most), alloc(t, rt, most), alloc(t, rt, 8)
	fill := rand.NewChaCha8([32]byte{2})
	for _, quads := range []int{0, 1, 255, 256, 257, 1023, 1024, 1025, 1300, 4096} {
		fill.Read(from.Host())
		fill.Read(to.Host())
		clear(word.Host())
		expected := append([]byte(nil), to.Host()...)
		copy(expected[32:], from.Host()[16:][:quads*16])
		require.NoError(t, stream.Launch(f, gpu.Dim3{X: 1, Y: 1, Z: 1}, gpu.Dim3{X: threads, Y: 1, Z: 1}, uint64(to.Addr())+32, uint64(from.Addr())+16, uint64(quads), uint64(word.Addr()), number))
		require.NoError(t, stream.Wait(time.Minute))
		require.True(t, string(expected) == string(to.Host()), "%d, and nothing else, are copied", quads)
		require.Equal(t, uint64(7), binary.LittleEndian.Uint64(word.Host()), "a word of four bytes")
	}
	end(from, to, word)
}

// TestPutOrder: in the PTX all threads meet after what they have copied, and one makes a fence for the whole system before it stores the number.
func TestPutOrder(t *testing.T) {
	image, err := os.ReadFile("../sdk/c/images/sm_80.ptx")
	require.NoError(t, err)
	_, body, found := strings.Cut(string(image), ".entry lanefs_put(")
	require.True(t, found)
	require.Regexp(t, `(?s)ld\.relaxed\.sys\.global\.v4.*st\.global\.v4.*bar\.sync\s+0;.*fence\.acq_rel\.sys;.*st\.(volatile|relaxed\.sys)\.global\.u32`, body)
	_, after, _ := strings.Cut(body, "bar.sync")
	require.NotRegexp(t, `\b(ld|st)\.(\w+\.)*v4`, after)
}

// Loads that are under way together are in registers, not in scratch memory.
func TestPiecesScratch(t *testing.T) {
	for arch := range isas {
		t.Run(arch, func(t *testing.T) {
			name := "../sdk/c/images/" + arch + ".co"
			if arch == "sm_80" {
				name = "../sdk/c/images/" + arch + ".ptx"
			}
			image, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NoError(t, checkScratch(arch, notes(t, image, arch)))
		})
	}
}

func alloc(t *testing.T, rt gpu.Runtime, n int) gpu.Memory {
	t.Helper()
	m, err := rt.Alloc(gpu.HostMapped, int64(n))
	require.NoError(t, err)
	return m
}
