package fs

import (
	"fmt"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// File handles (open_by_handle_at(2), NFS) identify a file by its FUSE node ID, which is the inode number, and its generation, which is
// the inode's. So they stay valid after the kernel has forgotten the file, and across mounts. For a file that it does not know the kernel
// sends LOOKUP of "." in the node ID and compares the generation of the reply. For a directory it then looks up ".." until it meets a
// directory that it knows, and searches for the names.

// LookupSelf finds a linked file by its number.
func (s *Server) LookupSelf(id uint64, out *fuse.EntryOut) syscall.Errno {
	if id <= ext4.RootIno || id > math.MaxUint32 { // the root's node ID is 1, and the kernel always knows it
		return syscall.ESTALE
	}
	in, err := s.vol.ByNumber(uint32(id))
	if err != nil {
		return s.root.fail("lookup by handle", fmt.Errorf("inode %d: %w", id, err))
	}
	s.found(in, out)
	return 0
}

// maxMoves is how often a directory may be renamed while its name is searched for.
const maxMoves = 5

// LookupParent finds the parent of the directory n, which must have a name in it.
func (n *node) LookupParent(out *fuse.EntryOut) syscall.Errno {
	for range maxMoves {
		up, name, err := n.parent()
		if err != nil {
			return n.fail("lookup of the parent", err)
		}
		if name == "" {
			up.Put()
			continue
		}
		if up.Ino() == ext4.RootIno {
			up.Put()
			n.srv.root.showEntry(out)
			return 0
		}
		n.srv.found(up, out)
		return 0
	}
	return syscall.ESTALE
}

// parent returns a reference to the parent of the directory n, and the name of n in it: "" if n was moved meanwhile.
func (n *node) parent() (up *ext4.Inode, name string, err error) {
	if a := n.in.Attr(); a.Mode&sIFMT != sIFDIR || a.Links == 0 {
		return nil, "", ext4.ErrStale
	}
	if up, err = n.in.Lookup(".."); err != nil {
		return nil, "", err
	}
	if up.Attr().Mode&sIFMT != sIFDIR || up.Ino() < ext4.RootIno || up == n.in {
		err = fmt.Errorf("\"..\" leads to inode %d: %w", up.Ino(), ext4.ErrCorrupt)
		up.Put()
		return nil, "", err
	}
	err = up.ReadDir(0, func(e ext4.DirEntry) bool {
		if e.Ino == n.in.Ino() && e.Name != "." && e.Name != ".." {
			name = e.Name
		}
		return name == ""
	})
	if err != nil {
		up.Put()
		return nil, "", err
	}
	return up, name, nil
}
