package powercut

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Tree is everything that can be seen of a volume, but for its times: recovery may set some.
type Tree struct {
	Nodes map[uint64]*Node // by inode number
	Root  uint64
}

// Node is one file of a Tree.
type Node struct {
	Mode, UID, GID uint32
	Links          uint32
	Size           int64
	Dev            uint64 // of a device node
	Target         string // of a symbolic link
	Xattrs         map[string]string
	Entries        map[string]uint64 // of a directory
	Content        []byte
}

func (n *Node) dir() bool { return n.Mode&unix.S_IFMT == unix.S_IFDIR }

// maxContent is more than any file of a workload has.
const maxContent = 64 << 20

// walk reads the whole volume.
func walk(v *ext4.FS) (*Tree, error) {
	t := &Tree{Nodes: map[uint64]*Node{}}
	root, err := v.Root()
	if err != nil {
		return nil, err
	}
	defer root.Put()
	t.Root = uint64(root.Ino())
	return t, t.add("/", root)
}

func (t *Tree) add(path string, i *ext4.Inode) error {
	ino := uint64(i.Ino())
	if n := t.Nodes[ino]; n != nil {
		if n.dir() {
			return fmt.Errorf("%s: directory %d has two names", path, ino)
		}
		return nil
	}
	a := i.Attr()
	n := &Node{Mode: a.Mode, UID: a.UID, GID: a.GID, Links: a.Links, Size: a.Size, Dev: uint64(a.Major)<<32 | uint64(a.Minor),
		Xattrs: map[string]string{}}
	t.Nodes[ino] = n
	names, err := i.Listxattr()
	if err != nil {
		return fmt.Errorf("%s: xattrs: %w", path, err)
	}
	for _, name := range names {
		v, err := i.Getxattr(name)
		if err != nil {
			return fmt.Errorf("%s: xattr %q: %w", path, name, err)
		}
		n.Xattrs[name] = string(v)
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if n.Target, err = i.Readlink(); err != nil {
			return fmt.Errorf("%s: link: %w", path, err)
		}
	case unix.S_IFREG:
		if n.Size > maxContent {
			return fmt.Errorf("%s: %d bytes", path, n.Size)
		}
		d, err := i.Read(0, int(n.Size))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		n.Content = bytes.Clone(d.Bytes())
		d.Release()
		if int64(len(n.Content)) != n.Size {
			return fmt.Errorf("%s: %d bytes read of %d", path, len(n.Content), n.Size)
		}
	case unix.S_IFDIR:
		n.Size = 0 // depends on the driver
		return t.addEntries(path, n, i)
	}
	return nil
}

func (t *Tree) addEntries(path string, n *Node, i *ext4.Inode) error {
	n.Entries = map[string]uint64{}
	twice := ""
	if err := i.ReadDir(0, func(e ext4.DirEntry) bool {
		if e.Name != "." && e.Name != ".." {
			if _, ok := n.Entries[e.Name]; ok {
				twice = e.Name
			}
			n.Entries[e.Name] = uint64(e.Ino)
		}
		return true
	}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if twice != "" {
		return fmt.Errorf("%s: %q is there twice", path, twice)
	}
	for name, ino := range n.Entries {
		c, err := i.Lookup(name)
		if err != nil {
			return fmt.Errorf("%s/%s: listed, but %w", path, name, err)
		}
		if uint64(c.Ino()) != ino {
			err = fmt.Errorf("%s/%s: listed as inode %d, found as %d", path, name, ino, c.Ino())
		} else {
			err = t.add(path+"/"+name, c)
		}
		c.Put()
		if err != nil {
			return err
		}
	}
	return nil
}

// same is an error that says how b differs from a.
func (a *Tree) same(b *Tree) error {
	var diffs []string
	seen := map[uint64]bool{}
	var compare func(path string, x, y uint64)
	compare = func(path string, x, y uint64) {
		if x != y {
			diffs = append(diffs, fmt.Sprintf("%s: inode %d and %d", path, x, y))
		}
		if seen[x] {
			return
		}
		seen[x] = true
		n, m := a.Nodes[x], b.Nodes[y]
		if d := n.differs(m); d != "" {
			diffs = append(diffs, path+": "+d)
		}
		for name, i := range n.Entries {
			if j, ok := m.Entries[name]; ok {
				compare(path+"/"+name, i, j)
			} else {
				diffs = append(diffs, fmt.Sprintf("%s/%s: only in the first", path, name))
			}
		}
		for name := range m.Entries {
			if _, ok := n.Entries[name]; !ok {
				diffs = append(diffs, fmt.Sprintf("%s/%s: only in the second", path, name))
			}
		}
	}
	compare("", a.Root, b.Root)
	if len(diffs) == 0 {
		return nil
	}
	slices.Sort(diffs)
	return fmt.Errorf("trees differ in %d places: %s", len(diffs), diffs[:min(len(diffs), 8)])
}

func (n *Node) differs(m *Node) string {
	switch {
	case n.Mode != m.Mode:
		return fmt.Sprintf("mode %o and %o", n.Mode, m.Mode)
	case n.UID != m.UID || n.GID != m.GID:
		return fmt.Sprintf("owner %d:%d and %d:%d", n.UID, n.GID, m.UID, m.GID)
	case n.Links != m.Links:
		return fmt.Sprintf("%d links and %d", n.Links, m.Links)
	case n.Size != m.Size:
		return fmt.Sprintf("size %d and %d", n.Size, m.Size)
	case n.Dev != m.Dev:
		return fmt.Sprintf("device %#x and %#x", n.Dev, m.Dev)
	case n.Target != m.Target:
		return fmt.Sprintf("target %q and %q", n.Target, m.Target)
	case !maps.Equal(n.Xattrs, m.Xattrs):
		return fmt.Sprintf("xattrs %.200q and %.200q", n.Xattrs, m.Xattrs)
	case !bytes.Equal(n.Content, m.Content):
		at := 0
		for n.Content[at] == m.Content[at] {
			at++
		}
		return fmt.Sprintf("content from byte %d: %s, and %s", at, identify(n.Content[at:], int64(at)), identify(m.Content[at:], int64(at)))
	}
	return ""
}
