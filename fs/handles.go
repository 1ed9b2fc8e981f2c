package fs

import (
	"context"
	"fmt"
	"math"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// File handles (open_by_handle_at(2), NFS) identify a file by its FUSE node ID, which is the inode number, and its generation, which is
// the inode's. So they stay valid after the kernel has forgotten the file, and across mounts. For a file that it does not know the kernel
// sends LOOKUP of "." in the node ID and compares the generation of the reply. For a directory it then looks up ".." until it meets a
// directory that it knows, and searches for the names.

var (
	_ = (gofs.NodeLookupNoder)((*node)(nil))
	_ = (gofs.NodeLookupParenter)((*node)(nil))
)

// byHandle returns the node of a linked file by its number, with one more kernel reference.
func (s *Server) byHandle(id uint64) (*node, syscall.Errno) {
	if id <= ext4.RootIno || id > math.MaxUint32 { // the root's node ID is 1, and the kernel always knows it
		return nil, syscall.ESTALE
	}
	in, err := s.vol.ByNumber(uint32(id))
	if err != nil {
		return nil, s.root.fail("lookup by handle", fmt.Errorf("inode %d: %w", id, err))
	}
	a := in.Attr()
	return s.nodes.intern(context.Background(), s.root, in, &a), 0
}

// LookupNode is called if go-fuse does not know a node that rawFS.Lookup has just found by byHandle.
func (n *node) LookupNode(_ context.Context, id uint64, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	child := n.srv.nodes.get(id)
	if child == nil {
		return nil, syscall.ESTALE
	}
	a := child.in.Attr()
	child.fillEntry(&a, out)
	return child.EmbeddedInode(), 0
}

// maxMoves is how often a directory may be renamed while its name is searched for.
const maxMoves = 5

// LookupParent finds the parent of the directory n, and the name of n in it.
func (n *node) LookupParent(ctx context.Context, out *fuse.EntryOut) (*gofs.Inode, string, syscall.Errno) {
	for range maxMoves {
		up, name, err := n.parent()
		if err != nil {
			return nil, "", n.fail("lookup of the parent", err)
		}
		if name == "" {
			up.Put()
			continue
		}
		if up.Ino() == ext4.RootIno {
			a := up.Attr()
			up.Put()
			n.srv.root.fillEntry(&a, out)
			return n.srv.root.EmbeddedInode(), name, 0
		}
		return n.reply(ctx, up, out).EmbeddedInode(), name, 0
	}
	return nil, "", syscall.ESTALE
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
