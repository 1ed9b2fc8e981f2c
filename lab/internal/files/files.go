// Package files reads the files of a mounted volume, for campaigns that compare what is there with what may be there. A Node
// is one file without its times, which recovery may set.
package files

import (
	"bytes"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// ID tells files apart, also those that had the same inode number one after the other.
type ID struct {
	Ino        uint64
	Generation uint32
}

// Node is what can be seen of one file.
type Node struct {
	ID
	Mode, UID, GID uint32
	Links          uint32
	Size           int64  // bytes; 0 of a directory: it depends on the driver
	Dev            uint64 // of a device node: major number << 32 | minor number
	Target         string // of a symbolic link
	Xattrs         map[string]string
	Entries        map[string]uint64 // inodes by name, of a directory; set by the caller of Children
	Content        []byte            // of a regular file
}

// Type returns the file type bits of the mode, such as unix.S_IFREG.
func (n *Node) Type() uint32 { return n.Mode & unix.S_IFMT }

// maxContent is more bytes than any file of a campaign has.
const maxContent = 64 << 20

// Read reads an inode, without the content of a regular file unless content is set. path is for errors.
func Read(path string, i *ext4.Inode, content bool) (*Node, error) {
	a := i.Attr()
	n := &Node{ID: ID{uint64(a.Ino), a.Generation}, Mode: a.Mode, UID: a.UID, GID: a.GID, Links: a.Links, Size: a.Size,
		Dev: uint64(a.Major)<<32 | uint64(a.Minor), Xattrs: map[string]string{}}
	names, err := i.Listxattr()
	if err != nil {
		return nil, fmt.Errorf("%q: xattrs: %w", path, err)
	}
	for _, name := range names {
		v, err := i.Getxattr(name)
		if err != nil {
			return nil, fmt.Errorf("%q: xattr %q: %w", path, name, err)
		}
		n.Xattrs[name] = string(v)
	}
	switch n.Type() {
	case unix.S_IFDIR:
		n.Size = 0
	case unix.S_IFLNK:
		n.Target, err = i.Readlink()
	case unix.S_IFREG:
		if content {
			n.Content, err = bytesOf(i, n.Size)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return n, nil
}

func bytesOf(i *ext4.Inode, size int64) ([]byte, error) {
	if size > maxContent {
		return nil, fmt.Errorf("%d bytes", size)
	}
	d, err := i.Read(0, int(size))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	if int64(len(d.Bytes())) != size {
		return nil, fmt.Errorf("%d bytes read of %d", len(d.Bytes()), size)
	}
	return bytes.Clone(d.Bytes()), nil
}

// Children calls f for every entry of a directory but "." and "..". It is an error if a name is there twice, or if a lookup
// does not find the inode that is listed. path is for errors.
func Children(path string, dir *ext4.Inode, f func(name string, i *ext4.Inode) error) error {
	var list []ext4.DirEntry
	seen := map[string]bool{}
	twice := ""
	if err := dir.ReadDir(0, func(e ext4.DirEntry) bool {
		if e.Name != "." && e.Name != ".." {
			if seen[e.Name] {
				twice = e.Name
			}
			seen[e.Name] = true
			list = append(list, e)
		}
		return true
	}); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	if twice != "" {
		return fmt.Errorf("%q: %q is there twice", path, twice)
	}
	for _, e := range list {
		i, err := dir.Lookup(e.Name)
		if err != nil {
			return fmt.Errorf("%q in %q is listed, but %w", e.Name, path, err)
		}
		if i.Ino() != e.Ino {
			err = fmt.Errorf("%q in %q is listed as inode %d, found as %d", e.Name, path, e.Ino, i.Ino())
		} else {
			err = f(e.Name, i)
		}
		i.Put()
		if err != nil {
			return err
		}
	}
	return nil
}

// DiffAttrs says in what the attributes of two nodes differ, "" if they are the same. Size, entries and content are left out.
func (n *Node) DiffAttrs(m *Node) string {
	switch {
	case n.Mode != m.Mode:
		return fmt.Sprintf("mode %o and %o", n.Mode, m.Mode)
	case n.UID != m.UID || n.GID != m.GID:
		return fmt.Sprintf("owner %d:%d and %d:%d", n.UID, n.GID, m.UID, m.GID)
	case n.Links != m.Links:
		return fmt.Sprintf("%d links and %d", n.Links, m.Links)
	case n.Dev != m.Dev:
		return fmt.Sprintf("device %#x and %#x", n.Dev, m.Dev)
	case n.Target != m.Target:
		return fmt.Sprintf("target %q and %q", n.Target, m.Target)
	case !maps.Equal(n.Xattrs, m.Xattrs):
		return fmt.Sprintf("xattrs %.200q and %.200q", n.Xattrs, m.Xattrs)
	}
	return ""
}

// Diff is DiffAttrs with the size and the content. content, if not nil, describes the bytes of both nodes from the first one
// that differs.
func (n *Node) Diff(m *Node, content func(at int) string) string {
	if d := n.DiffAttrs(m); d != "" {
		return d
	}
	if n.Size != m.Size || len(n.Content) != len(m.Content) {
		return fmt.Sprintf("size %d and %d", n.Size, m.Size)
	}
	if bytes.Equal(n.Content, m.Content) {
		return ""
	}
	at := 0
	for n.Content[at] == m.Content[at] {
		at++
	}
	if content != nil {
		return content(at)
	}
	return fmt.Sprintf("byte %d is %#x and %#x", at, n.Content[at], m.Content[at])
}
