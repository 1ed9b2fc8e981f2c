package fs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
)

// TestNodes: a node keeps its inode alive until the kernel has taken back every reference, and not longer.
func TestNodes(t *testing.T) {
	v := newVolume(t)
	root, err := v.vol.Root()
	require.NoError(t, err)
	s := &Server{vol: v.vol, nodes: newNodes()}
	s.root = &node{srv: s, in: root}
	lookup := func() *node {
		in, err := root.Lookup("file")
		require.NoError(t, err)
		n := intern(s, in)
		n.done()
		return n
	}
	made, err := root.Create("file", 0o100644, 0, 0, 0, 0)
	require.NoError(t, err)
	ino := made.Ino()
	free := v.vol.Statfs().InodesFree

	n := intern(s, made)
	require.Same(t, n, lookup())
	require.Same(t, n, lookup())
	s.nodes.retain(n)
	require.Same(t, n, s.nodes.get(uint64(ino)))
	require.NoError(t, root.Unlink("file"))
	s.nodes.addNameless(n)
	n.done()
	require.Nil(t, s.nodes.get(uint64(ino)), "nobody uses it")
	for _, take := range []uint64{1, 2} {
		s.nodes.forget(uint64(ino), take)
		used, errno := s.use(uint64(ino))
		require.Zero(t, errno, "one reference is left")
		require.Same(t, n, used, "a file without names stays loaded")
		_, err := n.in.Write(0, []byte("unlinked"))
		require.NoError(t, err)
		used.done()
	}
	require.Equal(t, free, v.vol.Statfs().InodesFree)
	s.nodes.forget(uint64(ino), 1)
	_, errno := s.use(uint64(ino))
	require.Equal(t, syscall.ESTALE, errno)
	require.Equal(t, free+1, v.vol.Statfs().InodesFree, "the inode is free again")
	s.nodes.forget(uint64(ino), 1) // as for the poll probe of go-fuse: no such node

	made, err = root.Create("file", 0o100644, 0, 0, 0, 0)
	require.NoError(t, err)
	other := intern(s, made)
	require.NotSame(t, n, other, "a new file is a new node")
	other.done()
	require.Same(t, other, lookup())
	s.nodes.clear()
	require.Zero(t, s.nodes.len())
	root.Put()
	v.close()
}

func intern(s *Server, in *ext4.Inode) *node {
	return s.nodes.intern(s, in, in.Generation())
}
