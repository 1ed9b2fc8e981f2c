package fs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// enter counts a kernel reference for a reply with an entry, and returns the attributes as they were before. It takes over the reference on in. The node that it
// returns is in use.
func (s *Server) enter(in *ext4.Inode) (*node, ext4.Attr) {
	// Attr may wait for a write to the file, so it is called before the table is locked.
	a := in.Attr()
	return s.nodes.intern(s, in, a.Generation, a.Links == 1 || a.Mode&sIFMT == sIFDIR), a
}

// reply is enter, and fills the reply.
func (s *Server) reply(in *ext4.Inode, out *fuse.EntryOut) *node {
	n, a := s.enter(in)
	n.fillEntry(&a, out)
	return n
}

// found is the whole reply for a file that was there before.
func (s *Server) found(in *ext4.Inode, out *fuse.EntryOut) {
	n, _ := s.enter(in)
	n.showEntry(out)
	n.done()
}

// Lookup finds a name.
func (n *node) Lookup(name string, out *fuse.EntryOut) syscall.Errno {
	in, err := n.in.Lookup(name)
	if err != nil {
		return n.fail("lookup", err)
	}
	// The root and inodes of lower numbers have no names. A damaged entry that leads to one would make a loop, or a second node with the
	// root's ID.
	if in.Ino() <= ext4.RootIno {
		ino := in.Ino()
		in.Put()
		return n.fail("lookup", fmt.Errorf("name %q leads to inode %d: %w", name, ino, ext4.ErrCorrupt))
	}
	n.srv.found(in, out)
	return 0
}

// owner returns the user and group of a file that the caller creates. ext4 applies the set-group-ID bit of directories.
func owner(c *fuse.Caller) (uid, gid uint32) {
	return c.Uid, c.Gid
}

// Create makes and opens a regular file in one request. The open file is a use of its node, which Release ends.
func (n *node) Create(c *fuse.Caller, name string, flags uint32, mode uint32, out *fuse.CreateOut) syscall.Errno {
	child, errno := n.make(c, name, mode&07777|syscall.S_IFREG, 0, &out.EntryOut)
	if errno != 0 {
		return errno
	}
	child.opened(flags)
	out.OpenFlags = n.srv.openFlags(flags)
	return 0
}

// Mknod makes a file of any type but a directory or a symbolic link.
func (n *node) Mknod(c *fuse.Caller, name string, mode, dev uint32, out *fuse.EntryOut) syscall.Errno {
	if mode&sIFMT == 0 {
		mode |= syscall.S_IFREG
	}
	child, errno := n.make(c, name, mode, dev, out)
	if errno == 0 {
		child.done()
	}
	return errno
}

// make makes a file of any type but a directory or a symbolic link. Its node is in use.
func (n *node) make(c *fuse.Caller, name string, mode, dev uint32, out *fuse.EntryOut) (*node, syscall.Errno) {
	inherited, err := n.inherit(mode)
	if err != nil {
		return nil, n.fail("default ACL", err)
	}
	uid, gid := owner(c)
	major, minor := splitRdev(dev)
	in, err := reclaimed(n.srv, func() (*ext4.Inode, error) {
		return n.in.Create(name, inherited.mode, uid, gid, major, minor, n.srv.may(c), inherited.xattrs())
	})
	if err != nil {
		return nil, n.fail("create", err)
	}
	return n.made("create", in, out)
}

// made replies with in, which was created in n. Its node is in use.
func (n *node) made(what string, in *ext4.Inode, out *fuse.EntryOut) (*node, syscall.Errno) {
	if err := n.syncNames(); err != nil {
		in.Put()
		return nil, n.fail(what, err)
	}
	n.attrsChanged()
	return n.srv.reply(in, out), 0
}

// Mkdir makes a directory.
func (n *node) Mkdir(c *fuse.Caller, name string, mode uint32, out *fuse.EntryOut) syscall.Errno {
	inherited, err := n.inherit(mode&07777 | syscall.S_IFDIR)
	if err != nil {
		return n.fail("default ACL", err)
	}
	uid, gid := owner(c)
	in, err := reclaimed(n.srv, func() (*ext4.Inode, error) {
		return n.in.Mkdir(name, inherited.mode, uid, gid, n.srv.may(c), inherited.xattrs())
	})
	if err != nil {
		return n.fail("mkdir", err)
	}
	child, errno := n.made("mkdir", in, out)
	if errno == 0 {
		child.done()
	}
	return errno
}

// Symlink makes a symbolic link.
func (n *node) Symlink(c *fuse.Caller, target, name string, out *fuse.EntryOut) syscall.Errno {
	uid, gid := owner(c)
	in, err := reclaimed(n.srv, func() (*ext4.Inode, error) {
		return n.in.Symlink(name, target, uid, gid, n.srv.may(c))
	})
	if err != nil {
		return n.fail("symlink", err)
	}
	child, errno := n.made("symlink", in, out)
	if errno == 0 {
		child.done()
	}
	return errno
}

// Tmpfile makes and opens a regular file without a name, for O_TMPFILE.
func (n *node) Tmpfile(c *fuse.Caller, flags uint32, mode uint32, out *fuse.CreateOut) syscall.Errno {
	inherited, err := n.inherit(mode&07777 | syscall.S_IFREG)
	if err != nil {
		return n.fail("default ACL", err)
	}
	uid, gid := owner(c)
	in, err := reclaimed(n.srv, func() (*ext4.Inode, error) {
		return n.in.Tmpfile(inherited.mode, uid, gid, n.srv.may(c), inherited.xattrs())
	})
	if err != nil {
		return n.fail("tmpfile", err)
	}
	child := n.srv.reply(in, &out.EntryOut)
	n.srv.nodes.addNameless(child)
	child.opened(flags)
	out.OpenFlags = n.srv.openFlags(flags)
	return 0
}

// Link gives t one more name.
func (n *node) Link(c *fuse.Caller, t *node, name string, out *fuse.EntryOut) syscall.Errno {
	if err := n.srv.reclaim(func() error { return n.in.Link(t.in, name, n.srv.may(c)) }); err != nil {
		return n.fail("link", err)
	}
	if err := n.syncNames(); err != nil {
		return n.fail("link", err)
	}
	n.attrsChanged()
	n.srv.nodes.retain(t)
	a := t.in.Attr()
	t.fillEntry(&a, out)
	return 0
}

// Unlink removes a name of anything but a directory.
func (n *node) Unlink(name string) syscall.Errno {
	v, err := n.victim(name)
	if err != nil {
		return n.fail("unlink", err)
	}
	defer v.finish(n, name, false)
	if err := n.in.Unlink(name); err != nil {
		return n.fail("unlink", err)
	}
	n.attrsChanged()
	return n.fail("unlink", n.syncNames())
}

// Rmdir removes an empty directory.
func (n *node) Rmdir(name string) syscall.Errno {
	v, err := n.victim(name)
	if err != nil {
		return n.fail("rmdir", err)
	}
	defer v.finish(n, name, false)
	if err := n.in.Rmdir(name); err != nil {
		return n.fail("rmdir", err)
	}
	n.attrsChanged()
	return n.fail("rmdir", n.syncNames())
}

// Rename moves a name. It replaces an existing file unless flags has RenameNoReplace or RenameExchange.
func (n *node) Rename(c *fuse.Caller, name string, to *node, newName string, flags uint32) syscall.Errno {
	may := n.srv.may(c)
	if flags&ext4.RenameExchange == 0 {
		v, err := to.victim(newName)
		if err != nil {
			return n.fail("rename", err)
		}
		// The notification is for the old name. One for the new name would make the kernel drop the entry that it just made.
		defer v.finish(n, name, flags&ext4.RenameWhiteout != 0)
	}
	if err := n.srv.reclaim(func() error {
		if flags&ext4.RenameWhiteout != 0 {
			uid, gid := owner(c)
			return n.in.RenameWhiteout(name, to.in, newName, flags, uid, gid, may)
		}
		return n.in.Rename(name, to.in, newName, flags, may)
	}); err != nil {
		return n.fail("rename", err)
	}
	n.attrsChanged()
	if to != n {
		to.attrsChanged()
	}
	to.renamed(newName)
	if flags&(ext4.RenameExchange|ext4.RenameWhiteout) != 0 {
		n.renamed(name)
	}
	return n.fail("rename", errors.Join(n.syncNames(), to.syncNames()))
}

// renamed notes that the file of a name has another change time.
func (n *node) renamed(name string) {
	in, err := n.in.Lookup(name)
	if err != nil {
		return
	}
	if file := n.srv.nodes.of(n.srv, in, true); file != nil {
		file.attrsChanged()
		file.done()
	}
	in.Put()
}

// Readlink returns the target of a symbolic link. The kernel caches it.
func (n *node) Readlink() ([]byte, syscall.Errno) {
	target, err := n.in.Readlink()
	if err != nil {
		return nil, n.fail("readlink", err)
	}
	return []byte(target), 0
}
