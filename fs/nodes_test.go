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
	return s.nodes.intern(s, in, in.Generation(), true)
}

// TestFreshNodes: that the kernel has a file's attributes is known until the next request that may change the file, also while its node is dropped, and takes no part in
// the kernel's count.
func TestFreshNodes(t *testing.T) {
	v := newVolume(t)
	root, err := v.vol.Root()
	require.NoError(t, err)
	s := &Server{vol: v.vol, nodes: newNodes()}
	s.root = &node{srv: s, in: root}
	in, err := root.Create("file", 0o100644, 0, 0, 0, 0)
	require.NoError(t, err)
	ino := in.Ino()
	require.False(t, s.nodes.fresh(ino), "not known")
	reply := func() {
		in, err := root.Lookup("file")
		require.NoError(t, err)
		intern(s, in).done()
	}
	drop := func() {
		s.nodes.mu.Lock()
		n := s.nodes.loaded[ino]
		s.nodes.unloadLocked(n)
		s.nodes.mu.Unlock()
		s.nodes.drop(n)
	}
	intern(s, in).done()
	require.True(t, s.nodes.fresh(ino))
	drop()
	require.True(t, s.nodes.fresh(ino))
	reply()
	drop()
	s.nodes.forget(uint64(ino), 1)
	require.True(t, s.nodes.fresh(ino))

	n, errno := s.useFor(uint64(ino), false)
	require.Zero(t, errno)
	n.done()
	require.True(t, s.nodes.fresh(ino), "a request that changes nothing loads it")
	n, errno = s.useFor(uint64(ino), false)
	require.Zero(t, errno)
	n.done()
	require.True(t, s.nodes.fresh(ino), "a request that changes nothing")
	drop()

	n, errno = s.use(uint64(ino))
	require.Zero(t, errno)
	require.False(t, s.nodes.fresh(ino), "a request may change it")
	n.done()
	require.False(t, s.nodes.fresh(ino))
	drop()
	require.False(t, s.nodes.fresh(ino))

	reply()
	require.True(t, s.nodes.fresh(ino))
	drop()
	s.nodes.forget(uint64(ino), 2)
	require.Zero(t, s.nodes.len())
	require.False(t, s.nodes.fresh(ino))
	root.Put()
	v.close()
}
