package xattr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse takes any bytes for a body and a block: what parses can be encoded and parses to the same.
func FuzzParse(f *testing.F) {
	fm := &Format{blockSize: 1024, inodes: 100, eaInode: true}
	s := &Set{format: fm, bodySize: 88}
	for _, n := range []string{"a", "bb", "ccc"} {
		for _, v := range []string{"", "v", "value value"} {
			_, _ = s.Put(Attr{Index: IndexUser, Name: n + v, Value: []byte(v)}, Always)
		}
	}
	seed := make([]byte, 96+1024)
	fm.EncodeBody(s, seed[:96])
	fm.EncodeBlock(s, 9, seed[96:])
	f.Add(seed)
	nameless := make([]byte, len(seed))
	copy(nameless[96:], seed[96:96+blockHeader])
	nameless[96+blockHeader+2] = 0x30 // a value offset, and nothing else
	f.Add(nameless)
	f.Fuzz(func(t *testing.T, b []byte) {
		both := make([]byte, 96+1024)
		copy(both, b)
		area, block := both[:96], both[96:]
		s, err := fm.Parse("inode", area, 9, block)
		if err != nil {
			return
		}
		want := *s
		want.Body, want.Block = clone(s.Body), clone(s.Block)
		fm.EncodeBody(s, area)
		fm.EncodeBlock(s, 9, block)
		got, err := fm.Parse("inode", area, 9, block)
		require.NoError(t, err)
		require.Equal(t, len(want.Body), len(got.Body))
		for i := range want.Body {
			w, g := want.Body[i], got.Body[i]
			w.Hash, g.Hash = 0, 0
			require.Equal(t, w, g)
		}
		require.Len(t, got.Block, len(want.Block))
		_, _ = fm.FindBody("inode", area, IndexUser, "a")
	})
}

func clone(in []Attr) (out []Attr) {
	for _, a := range in {
		if a.Value != nil {
			a.Value = append([]byte{}, a.Value...)
		}
		out = append(out, a)
	}
	return out
}

// FuzzACL takes any bytes for an ACL: what decodes encodes to the same.
func FuzzACL(f *testing.F) {
	f.Add(testACL.Encode())
	f.Add(testACL.Xattr())
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := DecodeACL(b); err == nil && a != nil {
			require.Equal(t, b, a.Encode())
			a.Inherit(0o644)
		}
		if a, err := ParseACL(b); err == nil && a != nil {
			again, err := ParseACL(a.Xattr())
			require.NoError(t, err)
			require.Equal(t, a, again)
		}
	})
}
