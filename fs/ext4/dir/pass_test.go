package dir

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The directories here have the same few blocks at a hundred thousand places. Nobody who looks for a name, adds one, lists them or asks whether there
// are any reads much more than there is.
const (
	places = 100_000
	little = 2*passFree + 100
)

// again puts what the directory has at places more.
func again(s *memStore) {
	for own := s.blocks[1:]; len(s.blocks) < places; {
		s.blocks = append(s.blocks, own...)
	}
}

func TestBlocksAgainWithoutIndex(t *testing.T) {
	d, s := newDir(t, super(t, 1024, true, true, false, false, HashHalfMD4))
	for k := range 300 {
		require.NoError(t, d.Add(s, fmt.Sprintf("name%d", k), 20, FTReg))
	}
	own := len(s.blocks)
	again(s)
	for name, what := range map[string]func() error{
		"lookup": func() error { _, _, err := d.Lookup(s, "none"); return err },
		"remove": func() error { _, err := d.Remove(s, "none"); return err },
		"add":    func() error { return d.Add(s, fmt.Sprintf("%0255d", 1), 20, FTReg) },
		"read":   func() error { return d.Read(s, 0, func(Entry, uint64) bool { return true }) },
	} {
		s.gets = 0
		require.True(t, isDamage(what()), name)
		require.Less(t, s.gets, little, name)
	}
	_, _, err := d.Lookup(s, "name299")
	require.NoError(t, err)
	s.blocks = s.blocks[:own]
	s.check()
}

func TestBlocksAgainEmpty(t *testing.T) {
	for name, index := range map[string]bool{"without an index": false, "with an index": true} {
		t.Run(name, func(t *testing.T) {
			d, s := newDir(t, super(t, 1024, false, true, index, false, HashHalfMD4))
			const names = 100
			for k := range names {
				require.NoError(t, d.Add(s, fmt.Sprintf("name%d", k), 20, FTReg))
			}
			for k := range names {
				_, err := d.Remove(s, fmt.Sprintf("name%d", k))
				require.NoError(t, err)
			}
			again(s)
			s.gets = 0
			_, err := d.Empty(s)
			require.True(t, isDamage(err))
			require.Less(t, s.gets, little)
			if index {
				clear(s.blocks[0].data[rootInfo:])
			}
			s.gets = 0
			_, _, err = d.Lookup(s, "none")
			require.True(t, isDamage(err))
			require.Less(t, s.gets, 2*little)
		})
	}
}

// TestBlocksAgainInIndex: all names of a hash are in one leaf, or so the index says, and in the next, which is the same one.
func TestBlocksAgainInIndex(t *testing.T) {
	d, s := newDir(t, super(t, 4096, false, true, true, false, HashHalfMD4))
	for k := 0; len(s.blocks) < 40; k++ {
		require.NoError(t, d.Add(s, fmt.Sprintf("%0200d", k), 20, FTReg))
	}
	leaf, name := s.blocks[1], "none"
	d.emptyLeaf(leaf.data)
	hash, _ := d.hash.Sum(name)
	s.blocks = s.blocks[:1]
	root := node{b: s.blocks[0], data: s.blocks[0].data, entries: rootEntries, limit: d.limitOf(rootEntries)}
	root.data[rootInfo+6] = 1
	for range root.limit {
		b := &memBlock{s: s, no: len(s.blocks), data: make([]byte, s.size)}
		s.blocks = append(s.blocks, b)
	}
	first := uint32(len(s.blocks))
	for i, b := range s.blocks[1:] {
		putRecLen(b.data, s.size)
		n := node{b: b, data: b.data, entries: nodeEntries, limit: d.limitOf(nodeEntries)}
		for j := range n.limit {
			n.set(j, hash|1, uint32(len(s.blocks)))
			s.blocks = append(s.blocks, leaf)
		}
		n.setCount(n.limit)
		root.set(i, hash|1, uint32(i+1))
	}
	root.setCount(root.limit)
	require.Greater(t, len(s.blocks)-int(first), places)
	s.gets = 0
	_, _, err := d.Lookup(s, name)
	require.True(t, isDamage(err), "%v", err)
	require.Less(t, s.gets, 3*little)
	s.gets = 0
	require.True(t, isDamage(d.Read(s, 2, func(Entry, uint64) bool { return true })))
	require.Less(t, s.gets, 3*little)
}
