package dir

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

type layout struct {
	blockSize                       int
	csum, filetype, index, largeDir bool
	hash                            uint8
	maxName                         int
	names                           int
}

var layouts = []layout{
	{1024, true, true, true, false, HashHalfMD4, 255, 6000},
	{1024, true, true, true, false, HashTEA, 20, 6000},
	{1024, false, false, true, false, HashLegacy, 30, 3000},
	{1024, true, true, true, true, HashHalfMD4, 2000, 30000},
	{1024, false, true, false, false, HashHalfMD4, 40, 300},
	{1024, true, false, false, false, HashHalfMD4, 40, 300},
	{4096, true, true, true, false, HashHalfMD4, 30, 10000},
	{65536, true, true, true, false, HashHalfMD4, 30, 4000},
	{65536, false, true, true, false, HashTEA, 30, 4000},
}

func (l layout) String() string {
	return fmt.Sprintf("%d,csum=%v,filetype=%v,index=%v,large=%v,hash=%d,name<=%d", l.blockSize, l.csum, l.filetype,
		l.index, l.largeDir, l.hash, l.maxName)
}

func randomName(r *rand.Rand, i, most int) string {
	n := fmt.Sprintf("%x-", i)
	if l := min(r.IntN(most)+1, MaxName); l > len(n) {
		b := make([]byte, l-len(n))
		for i := range b {
			if b[i] = byte(r.IntN(255) + 1); b[i] == '/' {
				b[i] = 0xE9
			}
		}
		n += string(b)
	}
	return n
}

func all(t testing.TB, d *Dir, s Store) map[string]uint32 {
	t.Helper()
	out := map[string]uint32{}
	last := uint64(0)
	require.NoError(t, d.Read(s, 0, func(e Entry, next uint64) bool {
		require.Greater(t, next, last)
		last = next
		_, dup := out[string(e.Name)]
		require.False(t, dup, "%q came twice", e.Name)
		out[string(e.Name)] = e.Ino
		return true
	}))
	require.Less(t, last, uint64(1)<<63)
	return out
}

// TestModel adds, replaces and removes names at random and holds the directory against a map.
func TestModel(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			d, s := newDir(t, super(t, l.blockSize, l.csum, l.filetype, l.index, l.largeDir, l.hash))
			want := map[string]uint32{".": testIno, "..": 2}
			var names []string
			for i := range l.names {
				name := randomName(r, i, l.maxName)
				s.appended, s.dirtied = 0, map[*memBlock]bool{}
				require.NoError(t, d.Add(s, name, uint32(i+20), FTReg))
				require.LessOrEqual(t, s.appended, MaxAppends)
				require.LessOrEqual(t, len(s.dirtied), MaxDirty)
				want[name] = uint32(i + 20)
				names = append(names, name)
				require.ErrorIs(t, d.Add(s, name, 5, FTReg), ErrExist)
				switch j := r.IntN(len(names)); r.IntN(8) {
				case 0:
					ino, err := d.Remove(s, names[j])
					require.NoError(t, err)
					require.Equal(t, want[names[j]], ino)
					delete(want, names[j])
					_, _, err = d.Lookup(s, names[j])
					require.ErrorIs(t, err, ErrNotExist)
					names[j] = names[len(names)-1]
					names = names[:len(names)-1]
				case 1:
					old, err := d.Replace(s, names[j], uint32(i+20), FTDir)
					require.NoError(t, err)
					require.Equal(t, want[names[j]], old)
					want[names[j]] = uint32(i + 20)
				}
			}
			_, err := d.Replace(s, "..", 99, FTDir)
			require.NoError(t, err)
			want[".."] = 99
			require.Equal(t, l.index, s.indexed)
			if l.index && l.maxName >= 255 {
				n, h, err := d.root(s)
				require.NoError(t, err)
				n.b.Put()
				require.Equal(t, d.maxLevels, h.levels)
			}
			s.check() // from here on every checksum is verified again
			require.Equal(t, want, all(t, d, s))
			for n, ino := range want {
				got, ft, err := d.Lookup(s, n)
				require.NoError(t, err, "%q", n)
				require.Equal(t, ino, got)
				require.Equal(t, l.filetype, ft != FTUnknown)
			}
			for _, n := range []string{"", "no", strings.Repeat("x", 256), "0-\x00"} {
				_, _, err := d.Lookup(s, n)
				require.ErrorIs(t, err, ErrNotExist)
			}
			empty, err := d.Empty(s)
			require.NoError(t, err)
			require.False(t, empty)
			for i, n := range names {
				_, err := d.Remove(s, n)
				require.NoError(t, err, "%d %q", i, n)
			}
			empty, err = d.Empty(s)
			require.NoError(t, err)
			require.True(t, empty)
			require.Equal(t, map[string]uint32{".": testIno, "..": 99}, all(t, d, s))
			s.check()
		})
	}
}

// TestCookies reads in small pieces while names come and go: what is there all the time comes exactly once.
func TestCookies(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			d, s := newDir(t, super(t, l.blockSize, l.csum, l.filetype, l.index, l.largeDir, l.hash))
			stay := map[string]bool{".": true, "..": true}
			var others []string
			n := 0
			add := func(keep bool) {
				n++
				name := randomName(r, n, l.maxName)
				require.NoError(t, d.Add(s, name, 20, FTReg))
				if keep {
					stay[name] = true
				} else {
					others = append(others, name)
				}
			}
			for i := range 20 { // still one block
				add(i%2 == 0)
			}
			seen := map[string]int{}
			cookie, end := uint64(0), false
			for piece := 0; !end; piece++ {
				end = true
				left := 1 + r.IntN(5)
				require.NoError(t, d.Read(s, cookie, func(e Entry, next uint64) bool {
					if left--; left < 0 {
						end = false
						return false
					}
					seen[string(e.Name)]++
					cookie = next
					return true
				}))
				for range l.blockSize / 256 {
					if n < 600 { // the directory grows while it is read, and gets its index
						add(false)
					}
				}
				if len(others) > 0 {
					j := r.IntN(len(others))
					_, err := d.Remove(s, others[j])
					require.NoError(t, err)
					others = slices.Delete(others, j, j+1)
				}
			}
			for name := range stay {
				require.Equal(t, 1, seen[name], "%q", name)
			}
			for name, c := range seen {
				require.Equal(t, 1, c, "%q", name)
			}
			require.Equal(t, l.index && l.blockSize < 65536, s.indexed)
			s.check()
		})
	}
}

// TestNoSpace lets every Append fail in turn: the directory stays whole.
func TestNoSpace(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			d, s := newDir(t, super(t, l.blockSize, l.csum, l.filetype, l.index, l.largeDir, l.hash))
			want := map[string]uint32{".": testIno, "..": 2}
			s.most = 1
			for i := range min(l.names, 3000) {
				name := randomName(r, i, l.maxName)
				for {
					err := d.Add(s, name, 20, FTReg)
					if err == nil {
						break
					}
					require.ErrorIs(t, err, errNoSpace)
					if len(want) < 100 {
						s.check()
						require.Equal(t, want, all(t, d, s))
					}
					s.most++
				}
				want[name] = 20
			}
			s.check()
			require.Equal(t, want, all(t, d, s))
		})
	}
}

// TestFull fills an index to its limit: the error is ErrFull and nothing is lost.
func TestFull(t *testing.T) {
	d, s := newDir(t, super(t, 1024, true, true, true, false, HashHalfMD4))
	d.maxLevels = 0
	want := map[string]uint32{".": testIno, "..": 2}
	for i := 0; ; i++ {
		name := fmt.Sprintf("%0250d", i)
		if err := d.Add(s, name, 20, FTReg); err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
		want[name] = 20
	}
	require.Greater(t, len(want), 200)
	s.check()
	require.Equal(t, want, all(t, d, s))
}

// sameHash are names of 255 bytes with one legacy hash. Recipe: 249 times "p", five characters counted up from "0" to
// "o", six bits each, and a last one for which the hash's last step, v = h1 + (h0 ^ c*7152373), gives 0x12345678.
var sameHash = func() (out []string) {
	for _, end := range []string{"iNGA1?", "cWjO4\xda", "AdJo5\x16", "MU9Q8\xf3", "_>K_8d", "II0d;\xf1", "Z@eH=\xa1", "bQP8Ak"} {
		out = append(out, strings.Repeat("p", MaxName-len(end))+end)
	}
	return out
}()

// TestCollisions fills a directory with names whose hashes agree, so that several leaves continue one another.
func TestCollisions(t *testing.T) {
	d, s := newDir(t, super(t, 1024, true, true, true, false, HashLegacy))
	same := sameHash
	h, _ := d.hash.Sum(same[0])
	want := map[string]uint32{".": testIno, "..": 2}
	add := func(n string) {
		want[n] = uint32(len(want) + 20)
		require.NoError(t, d.Add(s, n, want[n], FTReg))
	}
	for i, n := range same {
		g, _ := d.hash.Sum(n)
		require.Equal(t, h, g)
		add(n)
		for j := range 100 {
			add(fmt.Sprintf("filler %d %d", i, j))
		}
	}
	var c cursor
	require.NoError(t, c.open(d, s))
	require.NoError(t, c.probe(h))
	continued := 0
	for high, more := c.high(); more && high == h|1; high, more = c.high() {
		continued++
		_, err := c.next()
		require.NoError(t, err)
	}
	c.close()
	require.GreaterOrEqual(t, continued, 2, "continuing leaves")

	s.check()
	require.Equal(t, want, all(t, d, s))
	for n, ino := range want {
		got, _, err := d.Lookup(s, n)
		require.NoError(t, err)
		require.Equal(t, ino, got)
	}
	for cookie, n := uint64(0), 0; n < len(want); n++ { // one at a time
		taken := false
		require.NoError(t, d.Read(s, cookie, func(e Entry, next uint64) bool {
			if taken {
				return false
			}
			require.Contains(t, want, string(e.Name))
			delete(want, string(e.Name))
			n--
			taken, cookie = true, next
			return true
		}))
		require.True(t, taken)
	}
	for _, n := range same {
		_, err := d.Remove(s, n)
		require.NoError(t, err)
	}
	s.check()
}

func TestLookupDoesNotAllocate(t *testing.T) {
	d, s := newDir(t, super(t, 4096, true, true, true, false, HashHalfMD4))
	for i := range 100_000 {
		require.NoError(t, d.Add(s, fmt.Sprintf("name-%d", i), 20, FTReg))
	}
	i, misses := 0, 0
	s.gets = 0
	const runs = 1000
	n := testing.AllocsPerRun(runs, func() {
		if _, _, err := d.Lookup(s, lookupNames[i%len(lookupNames)]); err != nil {
			misses++
		}
		i++
	})
	require.Zero(t, misses)
	require.Zero(t, n)
	require.LessOrEqual(t, s.gets, 4*(runs+1), "blocks read")
}

var lookupNames = func() (out []string) {
	for i := range 1000 {
		out = append(out, fmt.Sprintf("name-%d", i*97))
	}
	return out
}()

func BenchmarkLookup(b *testing.B) {
	d, s := newDir(b, super(b, 4096, true, true, true, false, HashHalfMD4))
	for i := range 100_000 {
		require.NoError(b, d.Add(s, fmt.Sprintf("name-%d", i), 20, FTReg))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, _, err := d.Lookup(s, lookupNames[i%len(lookupNames)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	d, s := newDir(b, super(b, 4096, true, true, true, false, HashHalfMD4))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := d.Add(s, fmt.Sprintf("name-%d", i), 20, FTReg); err != nil {
			b.Fatal(err)
		}
	}
}

// TestForeignNames fills a leaf whose names do not hash to where the index has it: splitting it would put the index out
// of order.
func TestForeignNames(t *testing.T) {
	d, s := newDir(t, super(t, 1024, false, true, true, false, HashHalfMD4))
	add := func(i int) error { return d.Add(s, fmt.Sprintf("%d %s", i, strings.Repeat("n", 100)), 20, FTReg) }
	n := 0
	for ; s.Blocks() < 6; n++ {
		require.NoError(t, add(n))
	}
	d.hash.Seed[0]++ // as if another volume's
	var err error
	for ; n < 500 && err == nil; n++ {
		err = add(n)
	}
	require.ErrorAs(t, err, new(*disk.CorruptError))
	require.Contains(t, err.Error(), "are not the leaf's")
}
