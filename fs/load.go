package fs

import (
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// use returns the node of a FUSE node ID, loaded and in use. The caller calls done. ESTALE: the kernel does not know the node, or the
// volume has another file by that number.
func (s *Server) use(id uint64) (*node, syscall.Errno) { return s.useFor(id, true) }

// useFor is use. changes is false for a request after which all that the kernel was told of the file is still so, and is what the kernel has
// (node.fresh).
func (s *Server) useFor(id uint64, changes bool) (*node, syscall.Errno) {
	if id == fuse.FUSE_ROOT_ID {
		return s.root, 0
	}
	n, generation, known := s.nodes.use(id, changes)
	if n != nil {
		return n, 0
	}
	if !known {
		return nil, syscall.ESTALE
	}
	in, err := s.load(uint32(id), generation)
	if err == nil {
		n = s.nodes.of(s, in, changes)
		in.Put()
	} else {
		// A request that removes the file's last name may have loaded the node meanwhile. Then it is used without its name.
		n, _, _ = s.nodes.use(id, changes)
	}
	switch {
	case n != nil:
		return n, 0
	case err != nil:
		return nil, s.root.fail("load", fmt.Errorf("inode %d: %w", id, err))
	}
	return nil, syscall.ESTALE
}

// load returns a reference to an inode with names.
func (s *Server) load(ino, generation uint32) (*ext4.Inode, error) {
	in, err := s.vol.ByNumber(ino)
	if err == nil && in.Generation() != generation {
		in.Put()
		return nil, ext4.ErrStale
	}
	return in, err
}
