package dir

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSameLeafEverywhere: a damaged directory whose tree has the same leaf at a hundred thousand places. Its names are found and listed once, and no memory is taken for the rest.
func TestSameLeafEverywhere(t *testing.T) {
	d, s := newDir(t, super(t, 1024, false, true, true, false, HashHalfMD4))
	const names = 500
	for k := range names {
		require.NoError(t, d.Add(s, fmt.Sprintf("name%d", k), 20, FTReg))
	}
	require.True(t, s.Indexed())
	clear(s.blocks[0].data[rootInfo:]) // the index's root
	own := len(s.blocks)
	for range 100_000 {
		s.blocks = append(s.blocks, s.blocks[1])
	}
	for k := range names {
		ino, _, err := d.Lookup(s, fmt.Sprintf("name%d", k))
		require.NoError(t, err)
		require.EqualValues(t, 20, ino)
	}
	require.Error(t, s.damage)
	require.Less(t, s.gets, 20*own+10*names)
	seen := map[string]int{}
	require.True(t, isDamage(d.Read(s, 0, func(e Entry, _ uint64) bool {
		seen[string(e.Name)]++
		return true
	})), "names may be missing")
	require.Len(t, seen, names+2)
	for name, n := range seen {
		require.Equal(t, 1, n, name)
	}
	s.blocks = s.blocks[:own]
	s.check()
}

// TestUnchanging: a directory whose damage was found does not change any more, also where the way to a name is whole: what was added would not be found, and what was
// removed would be.
func TestUnchanging(t *testing.T) {
	d, s := newDir(t, super(t, 1024, false, true, true, true, HashHalfMD4))
	for i := range 100 {
		require.NoError(t, d.Add(s, fmt.Sprint("name ", i), 20, FTReg))
	}
	require.True(t, s.Indexed())
	damage := d.corrupt(1, 0, "for the test")
	_, err := d.listAnyway(s, damage)
	require.NoError(t, err)
	require.Equal(t, damage, d.Add(s, "new", 20, FTReg))
	_, err = d.Remove(s, "name 7")
	require.Equal(t, damage, err)
	_, err = d.Replace(s, "name 7", 30, FTReg)
	require.Equal(t, damage, err)
	ino, _, err := d.Lookup(s, "name 7")
	require.NoError(t, err)
	require.EqualValues(t, 20, ino)
}
