package media

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const recordBlocks = 64

// randomRecording makes a recording of n operations over recordBlocks blocks of 512 bytes. A block's first four bytes
// say which operation wrote it; the image begins with some data and some holes.
func randomRecording(r *rand.Rand, n int) *Recording {
	rec := &Recording{size: recordBlocks * 512, block: 512}
	rec.base = []span{{0, bytes.Repeat([]byte{0xee}, 20*512)}}
	for i := range n {
		o := operation{off: int64(r.IntN(recordBlocks)) * 512, arrival: uint64(max(0, i-r.IntN(4))), durable: r.IntN(4) == 0}
		o.n = int64(1+r.IntN(8)) * 512
		o.n = min(o.n, rec.size-o.off)
		switch k := r.IntN(10); {
		case k < 7:
			o.kind = opKindWrite
			o.data = bytes.Repeat([]byte{byte(i >> 8), byte(i), 1, 1}, int(o.n/4))
		case k < 9:
			o.kind = opKindZero
		default:
			o = operation{kind: opKindFlush, arrival: uint64(i)}
		}
		rec.add(o)
	}
	return rec
}

// possible is what block b may hold after a cut at at, worked out block by block from the definition.
func possible(rec *Recording, at int, b int64) (r [][]byte) {
	content := func(o *operation) []byte {
		if o.kind == opKindZero {
			return make([]byte, 512)
		}
		return o.data[b*512-o.off:][:512]
	}
	covers := func(o *operation) bool { return o.kind != opKindFlush && b*512 >= o.off && b*512 < o.off+o.n }
	flush := -1
	for i := range rec.log[:at] {
		if rec.log[i].kind == opKindFlush {
			flush = i
		}
	}
	base := make([]byte, 512)
	for _, s := range rec.base {
		if b*512 >= s.off && b*512 < s.off+int64(len(s.data)) {
			base = s.data[b*512-s.off:][:512]
		}
	}
	r = [][]byte{base}
	for i := range rec.log {
		o := &rec.log[i]
		switch {
		case !covers(o):
		case i < flush, i < at && o.durable: // certain: nothing older remains possible
			r = [][]byte{content(o)}
		case i < at, o.arrival <= uint64(at):
			r = append(r, content(o))
		}
	}
	return r
}

// content is a block and how it begins.
type content struct {
	block int64
	first [4]byte
}

func TestCutsArePossibleAndVaried(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 0))
	for range 3 {
		rec := randomRecording(r, 40)
		p, err := NewReplay(rec)
		require.NoError(t, err)
		b := make([]byte, 512)
		for at := 0; at <= rec.Len(); at++ {
			var allowed [recordBlocks][][]byte
			seen := map[content]bool{}
			want := 0
			for blk := range int64(recordBlocks) {
				allowed[blk] = possible(rec, at, blk)
				distinct := map[string]bool{}
				for _, a := range allowed[blk] {
					distinct[string(a)] = true
				}
				want += len(distinct)
			}
			for seed := range uint64(40) {
				require.NoError(t, p.Cut(at, seed))
				for blk := range int64(recordBlocks) {
					_, err := p.ReadAt(b, blk*512)
					if err != nil || !slices.ContainsFunc(allowed[blk], func(a []byte) bool { return bytes.Equal(a, b) }) {
						t.Fatalf("%v: block %d holds %x: %v", p, blk, b[:4], err)
					}
					seen[content{blk, [4]byte(b)}] = true
				}
			}
			require.Greater(t, len(seen)*10, want*7, "most of the possible contents turn up: cut at %d", at)
		}
		require.NoError(t, p.Close())
	}
}

func TestCutIsDeterministic(t *testing.T) {
	rec := randomRecording(rand.New(rand.NewPCG(3, 0)), 200)
	image := func(at int, seed uint64, before ...int) []byte {
		p, err := NewReplay(rec)
		require.NoError(t, err)
		defer p.Close()
		for _, b := range before {
			require.NoError(t, p.Cut(b, 99))
		}
		require.NoError(t, p.Cut(at, seed))
		b := make([]byte, rec.size)
		_, err = p.ReadAt(b, 0)
		require.NoError(t, err)
		return b
	}
	for seed := range uint64(40) {
		want := image(150, seed)
		require.Equal(t, want, image(150, seed, 0, 20, 140), "going forward")
		require.Equal(t, want, image(150, seed, 200, 180, 10), "going back")
	}
	p, err := NewReplay(rec)
	require.NoError(t, err)
	require.Error(t, p.Cut(-1, 0))
	require.Error(t, p.Cut(201, 0))
	require.NoError(t, p.Close())
	_, err = NewReplay(&Recording{})
	require.Error(t, err)
}

func TestWriteTo(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 0))
	rec := &Recording{size: 1 << 20, block: 512, base: []span{{512 << 10, random(1, make([]byte, 100<<10))}}}
	for i := range 200 {
		n := int64(1+r.IntN(64)) * 512
		o := operation{kind: opKindWrite, arrival: uint64(i + 1), n: n, off: int64(r.IntN(1<<20-int(n))) &^ 511}
		switch r.IntN(8) {
		case 0:
			o = operation{kind: opKindFlush}
		case 1:
			o.kind = opKindZero
		default:
			o.data = random(r.Uint64(), make([]byte, n))
		}
		rec.add(o)
	}
	p, err := NewReplay(rec)
	require.NoError(t, err)
	defer p.Close()
	path := filepath.Join(t.TempDir(), "cut")
	want := make([]byte, rec.size)
	check := func() {
		t.Helper()
		_, err := p.ReadAt(want, 0)
		require.NoError(t, err)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}
	require.NoError(t, p.Cut(0, 0))
	n, err := p.WriteTo(path)
	require.NoError(t, err)
	require.LessOrEqual(t, n, int64(100<<10+8192), "only data is written")
	check()
	require.Less(t, allocated(t, path), int64(512<<10), "holes stay holes")
	for i := range 30 {
		require.NoError(t, p.Cut(r.IntN(rec.Len()+1), uint64(i)))
		_, err := p.WriteTo(path)
		require.NoError(t, err)
		check()
		n, err := p.WriteTo(path)
		require.NoError(t, err)
		require.Zero(t, n, "nothing differs")
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		for range 5 { // what a recovery would do to it
			_, err = f.WriteAt(random(r.Uint64(), make([]byte, 3000)), r.Int64N(rec.size-3000))
			require.NoError(t, err)
		}
		require.NoError(t, f.Truncate(rec.size+int64(r.IntN(3)-1)*4096))
		require.NoError(t, f.Close())
	}
	_, err = p.WriteTo(filepath.Join(t.TempDir(), "none", "x"))
	require.Error(t, err)
}

func TestRecordingSaves(t *testing.T) {
	rec := randomRecording(rand.New(rand.NewPCG(8, 0)), 50)
	var b bytes.Buffer
	require.NoError(t, rec.Save(&b))
	got, err := LoadRecording(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	for _, n := range []int{0, 7, 8, 30, b.Len() / 2, b.Len() - 1} {
		_, err := LoadRecording(bytes.NewReader(b.Bytes()[:n]))
		require.ErrorIs(t, err, errRecording, "%d bytes of it", n)
	}
	for i := range 400 {
		c := bytes.Clone(b.Bytes())
		c[i%len(c)] ^= 0x41
		if r, err := LoadRecording(bytes.NewReader(c)); err == nil && r.size < 1<<30 {
			p, err := NewReplay(r)
			require.NoError(t, err)
			require.NoError(t, p.Cut(r.Len(), 1))
			require.NoError(t, p.Close())
		}
	}
}

// BenchmarkCut is one step of a campaign over a 64 MiB image with 32 MiB of data: a cut, and a file made from it on
// which a recovery then changes a few blocks.
func BenchmarkCut(b *testing.B) {
	const size = 64 << 20
	r := rand.New(rand.NewPCG(1, 0))
	rec := &Recording{size: size, block: 512, base: []span{{0, random(1, make([]byte, size/2))}}}
	for i := range 4000 {
		o := operation{kind: opKindWrite, off: int64(r.IntN(size/4096)) * 4096, n: 4096, arrival: uint64(i)}
		o.data = random(uint64(i), make([]byte, o.n))
		if i%40 == 39 {
			o = operation{kind: opKindFlush}
		}
		rec.add(o)
	}
	p, err := NewReplay(rec)
	require.NoError(b, err)
	defer p.Close()
	dir, err := os.MkdirTemp("/dev/shm", "softctl")
	require.NoError(b, err)
	defer os.RemoveAll(dir)
	i := 0
	for b.Loop() {
		require.NoError(b, p.Cut(i%rec.Len(), uint64(i)))
		_, err := p.WriteTo(filepath.Join(dir, "cut"))
		require.NoError(b, err)
		i++
	}
}

func allocated(t *testing.T, path string) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}
