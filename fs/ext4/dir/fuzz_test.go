package dir

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzStore is a directory of four blocks, or of more after Append, with the bytes given.
func fuzzStore(t testing.TB, b []byte, indexed bool) *memStore {
	s := &memStore{t: t, size: 1024, indexed: indexed, most: 12}
	for len(s.blocks) < 4 {
		m := &memBlock{s: s, data: make([]byte, s.size)}
		b = b[copy(m.data, b):]
		m.no = len(s.blocks)
		s.blocks = append(s.blocks, m)
	}
	return s
}

func (s *memStore) bytes() (out []byte) {
	for _, b := range s.blocks {
		out = append(out, b.data...)
	}
	return out
}

// FuzzDirectory takes any bytes for a directory: every operation ends, in bounds, with its references dropped, and what
// was added is found.
func FuzzDirectory(f *testing.F) {
	sb := super(f, 1024, false, true, true, true, HashHalfMD4)
	for n := range 3 {
		d, s := newDir(f, sb)
		for i := range 20 * n {
			_ = d.Add(s, fmt.Sprintf("%d-abcdefghijklmnopqrstuvwxyz", i), 20, FTReg)
		}
		f.Add(s.bytes(), s.indexed)
	}
	d, s := newDir(f, sb) // an index of two levels in four blocks
	for i := range 60 {
		_ = d.Add(s, fmt.Sprintf("%d-abcdefghijklm", i), 20, FTReg)
	}
	var c cursor
	require.NoError(f, c.open(d, s))
	require.NoError(f, d.growRoot(s, &c))
	c.close()
	f.Add(s.bytes(), s.indexed)
	damaged := s.bytes()
	clear(damaged[1024:])
	f.Add(damaged, true)
	d, s = newDir(f, sb) // then one without an index, of which the first leaf is whole
	require.NoError(f, d.Add(s, "a", 20, FTReg))
	f.Add(s.bytes(), false)

	f.Fuzz(func(t *testing.T, b []byte, indexed bool) {
		d := describe(sb, testIno, 77) // one that has seen damage remembers it
		s := fuzzStore(t, b, indexed)
		cookie := uint64(0)
		for range 5 {
			n := 0
			_ = d.Read(s, cookie, func(e Entry, next uint64) bool {
				require.Greater(t, next, cookie)
				cookie = next
				n++
				return n < 3
			})
		}
		_ = d.Read(s, 1<<40, func(Entry, uint64) bool { return true })
		_, _ = d.Empty(s)
		_, _, _ = d.Lookup(s, "..")
		_, _, _ = d.Lookup(s, "0-abcdefghijklmnopqrstuvwxyz")
		_, _ = d.Remove(s, "1-abcdefghijklmnopqrstuvwxyz")
		_, _ = d.Replace(s, "..", 5, FTDir)
		name := ""
		for i := range 40 {
			n := fmt.Sprintf("new name %d %0*d", i, 5*i, i)
			if err := d.Add(s, n, 30, FTReg); err == nil {
				name = n
			}
		}
		if name != "" {
			ino, _, err := d.Lookup(s, name)
			require.NoError(t, err)
			require.EqualValues(t, 30, ino)
		}
		s.check()
	})
}

// FuzzInline takes any bytes for a directory inside its inode.
func FuzzInline(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 9, 0, 0, 0, 56, 0, 1, 1, 'a'}, []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		block := make([]byte, 60)
		copy(block, a)
		in := Inline{Dir: InlineDir(super(t, 1024, true, true, true, false, HashTEA), testIno), Block: block, More: b}
		last := uint64(0)
		_ = in.Read(0, func(e Entry, next uint64) bool {
			require.Greater(t, next, last)
			last = next
			return true
		})
		_, _ = in.Empty()
		_, _, _ = in.Lookup("a")
		_, _, _ = in.Lookup("..")
	})
}
