package iofault

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// Tree is all files of a volume, without times: nodes by path, "" is the root. Open files without a name have "#" and their
// slot as path. A node is not changed once it is in a Tree.
type Tree map[string]*files.Node

// walk reads the whole volume. Nodes that are the same in before are shared with it.
func walk(v *ext4.FS, before Tree, slots []*slot) (Tree, error) {
	w := &walker{tree: Tree{}, before: before, seen: map[files.ID]*files.Node{}}
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
	seen         map[files.ID]*files.Node
}

func (w *walker) add(path string, i *ext4.Inode) error {
	if n := w.seen[idOf(i)]; n != nil {
		if n.Type() == unix.S_IFDIR {
			return fmt.Errorf("%q: directory %d has two names", path, n.Ino)
		}
		w.tree[path] = n
		return nil
	}
	n, err := files.Read(path, i, path != "/"+filler) // e2fsck sees that no other file has the filler's blocks
	if err != nil {
		return err
	}
	if old := w.before[path]; old != nil && old.ID == n.ID && old.Diff(n, nil) == "" {
		n = old
	}
	w.seen[n.ID], w.tree[path] = n, n
	if n.Type() != unix.S_IFDIR {
		return nil
	}
	return files.Children(path, i, func(name string, c *ext4.Inode) error { return w.add(path+"/"+name, c) })
}

func idOf(i *ext4.Inode) files.ID {
	return files.ID{Ino: uint64(i.Ino()), Generation: i.Attr().Generation}
}

// names returns the names that only one of two trees has, "" if there are none. If named is set, files without names are left
// out.
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

// same returns how t differs from want, "" if it does not.
func (t Tree) same(want Tree) string {
	if d := t.names(want, false); d != "" {
		return d
	}
	for p, n := range t {
		if m := want[p]; n != m {
			if d := n.Diff(m, nil); d != "" {
				return fmt.Sprintf("%.60q: %s", p, d)
			}
		}
	}
	return ""
}

// partly returns "" if t has the names and attributes of want, and each byte of its files is the byte at that offset in one of
// the trees of between, or zero where one of them has no byte. floor, if not nil, has for a file the first tree of between that
// counts.
func (t Tree) partly(want Tree, between []Tree, floor map[files.ID]int) string {
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
		if d := n.DiffAttrs(m); d != "" {
			return fmt.Sprintf("%.60q: %s", p, d)
		}
		if n.Type() != unix.S_IFREG {
			continue
		}
		if d := partly(n, m, between, floor[m.ID]); d != "" {
			return fmt.Sprintf("%.60q: %s", p, d)
		}
	}
	return ""
}

// partly is Tree.partly for the content of one file, of which want is one version.
func partly(n, want *files.Node, between []Tree, floor int) string {
	versions := versionsOf(want.ID, between, floor)
	if len(versions) == 0 {
		versions = []*files.Node{want}
	}
	least, most := versions[0].Size, versions[0].Size
	for _, v := range versions {
		least, most = min(least, v.Size), max(most, v.Size)
	}
	if n.Size < least || n.Size > most {
		return fmt.Sprintf("size %d, not from %d to %d", n.Size, least, most)
	}
	for k, b := range n.Content {
		if !(b == 0 && least <= int64(k)) && !has(versions, int64(k), b) {
			return fmt.Sprintf("byte %d of %d is %#x, which the file never had there (%d versions)", k, n.Size, b, len(versions))
		}
	}
	return ""
}

// has reports whether one of the versions has the byte at an offset.
func has(versions []*files.Node, at int64, b byte) bool {
	for _, v := range versions {
		if at < int64(len(v.Content)) && v.Content[at] == b {
			return true
		}
	}
	return false
}

// versionsOf lists the different contents of a file in the trees from number floor on.
func versionsOf(id files.ID, between []Tree, floor int) []*files.Node {
	var list []*files.Node
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

func (t Tree) find(id files.ID) *files.Node {
	for _, n := range t {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// own returns "" if every byte of every file of t is one that a file of its name had there in one of
// the trees.
func (t Tree) own(trees []Tree) string {
	for p, n := range t {
		if n.Type() != unix.S_IFREG || p == "/"+filler {
			continue
		}
		ids := map[files.ID]bool{}
		for _, tree := range trees {
			if m := tree[p]; m != nil && m.Type() == unix.S_IFREG {
				ids[m.ID] = true
			}
		}
		var versions []*files.Node // also from trees in which the file had another name, or none
		for _, tree := range trees {
			for _, m := range tree {
				if ids[m.ID] && !slices.Contains(versions, m) {
					versions = append(versions, m)
				}
			}
		}
		if len(versions) == 0 {
			continue // a name that a repeated operation has left
		}
		for k, b := range n.Content {
			if b != 0 && !has(versions, int64(k), b) {
				return fmt.Sprintf("%.60q: byte %d of %d is %#x, which no file of that name had there", p, k, n.Size, b)
			}
		}
	}
	return ""
}
