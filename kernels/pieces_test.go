package kernels

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
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

// A seat of lanefs_copier (copier.h): where its words are, and the bits of a piece.
const (
	seatTo, seatWhat, seatDone, seatHere, seatLeaving, seatLeft = 0, 8, 64, 68, 72, 76
	copierAddress, copierQuads                                  = 44, 12
)

// seat is that memory. Its words are read and written while the kernel runs.
type seat struct{ b []byte }

func (s seat) long(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&s.b[at])) }
func (s seat) word(at int) uint32         { return (*atomic.Uint32)(unsafe.Pointer(&s.b[at])).Load() }

// piece has the words of a piece of so many sixteen bytes.
func piece(number, to, from, quads uint64) (first, second uint64) {
	return number<<copierAddress | to/16, number&0xff<<(copierAddress+copierQuads) | (quads-1)<<copierAddress | from/16
}

// copier launches lanefs_copier, and posts pieces to it as a program does.
type copier struct {
	t              *testing.T
	s              seat
	launches       uint64
	number         uint64 // of the last piece
	launch         func(launch, last uint64)
	served, missed int
}

// there has it running: it leaves when the test was kept from a CPU for long.
func (c *copier) there() {
	if c.launches > 0 && c.s.word(seatLeaving) != uint32(c.launches) {
		return
	}
	require.Eventually(c.t, func() bool { return c.launches == 0 || c.s.word(seatLeft) == uint32(c.launches) }, time.Minute, time.Millisecond)
	c.launches++
	c.launch(c.launches, c.number)
	require.Eventually(c.t, func() bool { return c.s.word(seatHere) == uint32(c.launches) }, time.Minute, time.Millisecond)
}

// next is the number of the next piece: twenty bits, never 0.
func (c *copier) next() uint64 { return max(1, (c.number+1)&(1<<20-1)) }

// post posts a piece, and waits for its end. Whether it was copied: otherwise the block has left before.
func (c *copier) post(to, from gpu.Addr, quads int) bool {
	c.there()
	c.number = c.next()
	first, second := piece(c.number, uint64(to), uint64(from), uint64(quads))
	c.s.long(seatTo).Store(first)
	c.s.long(seatWhat).Store(second)
	return c.wait()
}

func (c *copier) wait() bool {
	done := func() bool { return c.s.word(seatDone) == uint32(c.number) }
	require.Eventually(c.t, func() bool { return done() || c.s.word(seatLeft) == uint32(c.launches) }, time.Minute, 20*time.Microsecond)
	if done() {
		c.served++
	} else {
		c.missed++
	}
	return done()
}

func newCopier(t *testing.T, idle, life uint64) (*copier, gpu.Runtime, func(...gpu.Memory)) {
	rt, f, stream, end := openPieces(t, "lanefs_copier")
	shared := alloc(t, rt, 128)
	clear(shared.Host())
	c := &copier{t: t, s: seat{shared.Host()}}
	var running sync.WaitGroup
	c.launch = func(launch, last uint64) {
		running.Go(func() { // the host's runtime may run it before it returns
			assert.NoError(t, stream.Launch(f, gpu.Dim3{X: 1, Y: 1, Z: 1}, gpu.Dim3{X: 256, Y: 1, Z: 1}, uint64(shared.Addr()), launch, last, idle, life))
		})
	}
	return c, rt, func(m ...gpu.Memory) {
		running.Wait()
		require.NoError(t, stream.Wait(time.Minute))
		require.Equal(t, uint32(c.launches), c.s.word(seatLeft))
		end(append(m, shared)...)
	}
}

// Ticks of the clock: some tenths of a second, and longer than any test.
const someTime, forEver = 1e9, 1 << 62

// TestCopier has as many sixteen bytes copied as there are around where the kernel changes its way, and nothing beside them, piece after piece by one launch.
func TestCopier(t *testing.T) {
	c, rt, end := newCopier(t, someTime, forEver)
	const most = 66 << 10
	from, to := alloc(t, rt, most), alloc(t, rt, most)
	fill := rand.NewChaCha8([32]byte{2})
	c.number = 1<<20 - 50 // they begin again with 1
	first, second := piece(c.number, 0, 0, 1)
	c.s.long(seatTo).Store(first)
	c.s.long(seatWhat).Store(second)
	for range 20 {
		for _, quads := range []int{1, 2, 255, 256, 257, 2047, 2048, 2049, 2300, 4096} {
			fill.Read(from.Host())
			fill.Read(to.Host())
			expected := append([]byte(nil), to.Host()...)
			if c.post(to.Addr()+32, from.Addr()+16, quads) {
				copy(expected[32:], from.Host()[16:][:quads*16])
			}
			require.True(t, string(expected) == string(to.Host()), "%d, and nothing else, are copied", quads)
		}
	}
	require.Greater(t, c.served, 150)
	end(from, to)
}

// TestCopierHalf: one word of a piece is none, whichever comes first.
func TestCopierHalf(t *testing.T) {
	c, rt, end := newCopier(t, someTime, forEver)
	from, to := alloc(t, rt, 4096), alloc(t, rt, 4096)
	for i := range 20 {
		c.there()
		before := c.number
		c.number = c.next()
		first, second := piece(c.number, uint64(to.Addr()), uint64(from.Addr()), 4)
		from.Host()[0], to.Host()[0] = byte(i), 0xff
		words, values := []int{seatTo, seatWhat}, []uint64{first, second}
		c.s.long(words[i%2]).Store(values[i%2])
		time.Sleep(2 * time.Millisecond)
		require.NotEqual(t, uint32(c.number), c.s.word(seatDone), "after %d", before)
		require.Equal(t, byte(0xff), to.Host()[0])
		c.s.long(words[1-i%2]).Store(values[1-i%2])
		if c.wait() {
			require.Equal(t, byte(i), to.Host()[0])
		}
	}
	require.Greater(t, c.served, 10)
	end(from, to)
}

// TestCopierLeaves: the block leaves when nothing comes, and after its life though pieces come. It says so before, and what comes after it has said that it has left stays where it is, for later launches, too.
func TestCopierLeaves(t *testing.T) {
	c, rt, end := newCopier(t, forEver/8, 1e7) // a life of some milliseconds
	from, to := alloc(t, rt, 4096), alloc(t, rt, 4096)
	for i := range 2000 {
		from.Host()[0], to.Host()[0] = byte(i), byte(^i)
		if c.post(to.Addr(), from.Addr(), 1) {
			require.Equal(t, byte(i), to.Host()[0])
		} else {
			time.Sleep(time.Millisecond)
			c.there()
			time.Sleep(time.Millisecond)
			require.Equal(t, byte(^i), to.Host()[0])
		}
		if c.launches > 5 && i > 100 {
			break
		}
	}
	require.Greater(t, c.launches, uint64(5))
	require.Greater(t, c.served, 5)
	end(from, to)

	c, rt, end = newCopier(t, 1e6, forEver) // idle for less than a millisecond
	to = alloc(t, rt, 4096)
	c.there()
	require.Eventually(t, func() bool { return c.s.word(seatLeft) == uint32(c.launches) }, time.Minute, time.Millisecond)
	require.Equal(t, c.s.word(seatLeft), c.s.word(seatLeaving))
	c.number = c.next()
	first, second := piece(c.number, uint64(to.Addr()), uint64(to.Addr())+64, 4)
	c.s.long(seatTo).Store(first)
	c.s.long(seatWhat).Store(second)
	to.Host()[0], to.Host()[64] = 1, 2
	c.there()
	time.Sleep(5 * time.Millisecond)
	require.Equal(t, byte(1), to.Host()[0])
	require.NotEqual(t, uint32(c.number), c.s.word(seatDone))
	end(to)
}

// TestCopierOrder: in the PTX the piece is an acquire, one load for both words; all threads meet before they copy and after; one makes a fence for the whole system before it stores the number, and before it says
// that it has left.
func TestCopierOrder(t *testing.T) {
	image, err := os.ReadFile("../sdk/c/images/sm_80.ptx")
	require.NoError(t, err)
	_, body, found := strings.Cut(string(image), ".entry lanefs_copier(")
	require.True(t, found)
	body, _, _ = strings.Cut(body, ".entry")
	require.Equal(t, 1, strings.Count(body, "ld.acquire.sys.global.v2.u64"))
	require.NotRegexp(t, `ld\.(volatile|relaxed\.sys)\.global\.u`, body, "loads of one thread from the host's memory wait for one another")
	stores := regexp.MustCompile(`st\.(volatile|relaxed\.sys)\.global\.u32\s+\[%rd\d+\+(\d+)\]`).FindAllStringSubmatchIndex(body, -1)
	where := map[string]int{}
	for _, m := range stores {
		where[body[m[4]:m[5]]]++
		if at := body[m[4]:m[5]]; at == "64" || at == "76" {
			before := body[:m[0]]
			require.Regexp(t, `fence\.acq_rel\.sys;[^:]*$`, before, "a fence comes before the store at %s, with no label between them", at)
		}
	}
	require.Equal(t, map[string]int{"64": 1, "68": 1, "72": 1, "76": 1, "80": 1}, where)
	require.Equal(t, 2, strings.Count(body, "bar.sync"))
	require.Regexp(t, `(?s)ld\.acquire.*bar\.sync\s+0;.*ld\.shared`, body)
	require.Regexp(t, `(?s)ld\.relaxed\.sys\.global\.v4`, body)
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
