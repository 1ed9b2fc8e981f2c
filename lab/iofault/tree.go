package iofault

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Tree is everything that can be seen of a volume, but for times: nodes by path, "" is the root. Files that are open and
// have no name are there as "#" and their slot.
type Tree map[string]*Node

// ident tells files apart, also those that had the same inode number one after the other.
type ident struct{ ino, generation uint32 }

// Node is one file. It is not changed once it is in a Tree.
type Node struct {
	id             ident
	mode, uid, gid uint32
	links          uint32
	size           int64 // of regular files
	dev            uint64
	target         string
	xattrs         map[string]string
	content        []byte
}

func (n *Node) regular() bool { return n.mode&unix.S_IFMT == unix.S_IFREG }

const maxContent = 64 << 20

// walk reads the whole volume. Nodes that are as in before are shared with it.
func walk(v *ext4.FS, before Tree, slots []*slot) (Tree, error) {
	w := &walker{tree: Tree{}, before: before, seen: map[ident]*Node{}}
	root, err := v.Root()
	if err != nil {
		return nil, err
	}
	defer root.Put()
	if err := w.add("", root); err != nil {
		return nil, err
	}
	for k, s := range slots {
		if s == nil || s.in.Attr().Links > 0 {
			continue
		}
		if err := w.add(fmt.Sprintf("#%d", k), s.in); err != nil {
			return nil, err
		}
	}
	return w.tree, nil
}

type walker struct {
	tree, before Tree
	seen         map[ident]*Node
}

func (w *walker) add(path string, i *ext4.Inode) error {
	a := i.Attr()
	id := ident{a.Ino, a.Generation}
	if n := w.seen[id]; n != nil {
		if n.mode&unix.S_IFMT == unix.S_IFDIR {
			return fmt.Errorf("%q: directory %d has two names", path, a.Ino)
		}
		w.tree[path] = n
		return nil
	}
	n := &Node{id: id, mode: a.Mode, uid: a.UID, gid: a.GID, links: a.Links, dev: uint64(a.Major)<<32 | uint64(a.Minor),
		xattrs: map[string]string{}}
	names, err := i.Listxattr()
	if err != nil {
		return fmt.Errorf("%q: xattrs: %w", path, err)
	}
	for _, name := range names {
		v, err := i.Getxattr(name)
		if err != nil {
			return fmt.Errorf("%q: xattr %q: %w", path, name, err)
		}
		n.xattrs[name] = string(v)
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if n.target, err = i.Readlink(); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
	case unix.S_IFREG:
		if n.size = a.Size; path == "/"+filler {
			break // e2fsck sees that nobody else has its blocks
		}
		if n.content, err = content(i, a.Size); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
	}
	if old := w.before[path]; old != nil && old.id == id && old.same(n) == "" {
		n = old
	}
	w.seen[id], w.tree[path] = n, n
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		return w.addEntries(path, i)
	}
	return nil
}

func content(i *ext4.Inode, size int64) ([]byte, error) {
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

func (w *walker) addEntries(path string, i *ext4.Inode) error {
	type entry struct {
		name string
		ino  uint32
	}
	var list []entry
	seen := map[string]bool{}
	twice := ""
	if err := i.ReadDir(0, func(e ext4.DirEntry) bool {
		if e.Name != "." && e.Name != ".." {
			if seen[e.Name] {
				twice = e.Name
			}
			seen[e.Name] = true
			list = append(list, entry{e.Name, e.Ino})
		}
		return true
	}); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	if twice != "" {
		return fmt.Errorf("%q: %q is there twice", path, twice)
	}
	for _, e := range list {
		c, err := i.Lookup(e.name)
		if err != nil {
			return fmt.Errorf("%q in %q is listed, but %w", e.name, path, err)
		}
		if c.Ino() != e.ino {
			err = fmt.Errorf("%q in %q is listed as inode %d, found as %d", e.name, path, e.ino, c.Ino())
		} else {
			err = w.add(path+"/"+e.name, c)
		}
		c.Put()
		if err != nil {
			return err
		}
	}
	return nil
}

// sameMeta is "" or says how two nodes differ in what is not content.
func (n *Node) sameMeta(m *Node) string {
	switch {
	case n.mode != m.mode:
		return fmt.Sprintf("mode %o, not %o", n.mode, m.mode)
	case n.uid != m.uid || n.gid != m.gid:
		return fmt.Sprintf("owner %d:%d, not %d:%d", n.uid, n.gid, m.uid, m.gid)
	case n.links != m.links:
		return fmt.Sprintf("%d links, not %d", n.links, m.links)
	case n.dev != m.dev:
		return fmt.Sprintf("device %#x, not %#x", n.dev, m.dev)
	case n.target != m.target:
		return fmt.Sprintf("target %q, not %q", n.target, m.target)
	case !maps.Equal(n.xattrs, m.xattrs):
		return fmt.Sprintf("xattrs %.100q, not %.100q", n.xattrs, m.xattrs)
	}
	return ""
}

func (n *Node) same(m *Node) string {
	if d := n.sameMeta(m); d != "" {
		return d
	}
	if n.size != m.size {
		return fmt.Sprintf("size %d, not %d", n.size, m.size)
	}
	if bytes.Equal(n.content, m.content) {
		return ""
	}
	for k := range n.content {
		if n.content[k] != m.content[k] {
			return fmt.Sprintf("byte %d is %#x, not %#x", k, n.content[k], m.content[k])
		}
	}
	return ""
}

// names is "" or says which names only one of two trees has. Files without names are left out if named is set.
func (t Tree) names(want Tree, named bool) string {
	var d []string
	for p := range t {
		if _, ok := want[p]; !ok && !(named && strings.HasPrefix(p, "#")) {
			d = append(d, fmt.Sprintf("%.60q should not be there", p))
		}
	}
	for p := range want {
		if _, ok := t[p]; !ok && !(named && strings.HasPrefix(p, "#")) {
			d = append(d, fmt.Sprintf("%.60q is missing", p))
		}
	}
	slices.Sort(d)
	return strings.Join(d[:min(len(d), 4)], ", ")
}

// same is "" or says how t differs from want.
func (t Tree) same(want Tree) string {
	if d := t.names(want, false); d != "" {
		return d
	}
	for p, n := range t {
		if m := want[p]; n != m {
			if d := n.same(m); d != "" {
				return fmt.Sprintf("%.60q: %s", p, d)
			}
		}
	}
	return ""
}

// partly is "" if t has the names and attributes of want, and each byte of its files is the one that it is in one of the
// trees of between, or zero where one of them has no byte. floor, if not nil, gives the first of between that counts for a file; shifts
// how far its bytes may have been moved meanwhile: what is written in place after that is elsewhere, if the move is not durable.
func (t Tree) partly(want Tree, between []Tree, floor map[ident]int, shifts ...int64) string {
	if d := t.names(want, true); d != "" {
		return d
	}
	for p, n := range t {
		if strings.HasPrefix(p, "#") && want[p] == nil {
			continue
		}
		m := want[p]
		if n == m {
			continue
		}
		if d := n.sameMeta(m); d != "" {
			return fmt.Sprintf("%.60q: %s", p, d)
		}
		if !n.regular() {
			continue
		}
		if d := n.partly(m, between, floor[m.id], shifts); d != "" {
			return fmt.Sprintf("%.60q: %s", p, d)
		}
	}
	return ""
}

// partly is Tree.partly for the content of one file, which want is one version of.
func (n *Node) partly(want *Node, between []Tree, floor int, shifts []int64) string {
	versions := versionsOf(want.id, between, floor)
	if len(versions) == 0 {
		versions = []*Node{want}
	}
	least, most := versions[0].size, versions[0].size
	for _, v := range versions {
		least, most = min(least, v.size), max(most, v.size)
	}
	if n.size < least || n.size > most {
		return fmt.Sprintf("size %d, not from %d to %d", n.size, least, most)
	}
	for k, b := range n.content {
		if !(b == 0 && least <= int64(k)) && !has(versions, int64(k), b, shifts) {
			return fmt.Sprintf("byte %d of %d is %#x, which the file never had there (%d versions)", k, n.size, b, len(versions))
		}
	}
	return ""
}

// has says whether one of the versions has the byte there, or would if its bytes were moved.
func has(versions []*Node, at int64, b byte, shifts []int64) bool {
	for _, v := range versions {
		if at < int64(len(v.content)) && v.content[at] == b {
			return true
		}
		for _, d := range shifts {
			if k := at + d; k >= 0 && k < int64(len(v.content)) && v.content[k] == b {
				return true
			}
		}
	}
	return false
}

// versionsOf lists the different contents of a file in the trees from number floor on.
func versionsOf(id ident, between []Tree, floor int) []*Node {
	var list []*Node
	for k, t := range between {
		if k < floor {
			continue
		}
		if n := t.find(id); n != nil && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

func (t Tree) find(id ident) *Node {
	for _, n := range t {
		if n.id == id {
			return n
		}
	}
	return nil
}

// own is "" if no file of t shows a byte that no file of its name had there in any of the trees. shifts is as in partly.
func (t Tree) own(trees []Tree, shifts ...int64) string {
	for p, n := range t {
		if !n.regular() || p == "/"+filler {
			continue
		}
		ids := map[ident]bool{}
		for _, tree := range trees {
			if m := tree[p]; m != nil && m.regular() {
				ids[m.id] = true
			}
		}
		var versions []*Node // also those that the file had when it had another name, or none
		for _, tree := range trees {
			for _, m := range tree {
				if ids[m.id] && !slices.Contains(versions, m) {
					versions = append(versions, m)
				}
			}
		}
		if len(versions) == 0 {
			continue // a name that a try again has left
		}
		for k, b := range n.content {
			if b != 0 && !has(versions, int64(k), b, shifts) {
				return fmt.Sprintf("%.60q: byte %d of %d is %#x, which no file of that name had there", p, k, n.size, b)
			}
		}
	}
	return ""
}
