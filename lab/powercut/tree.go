package powercut

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// Tree is all files of a volume, without their times: recovery may set some.
type Tree struct {
	Nodes map[uint64]*files.Node // by inode number
	Root  uint64
}

// walk reads the whole volume.
func walk(v *ext4.FS) (*Tree, error) {
	t := &Tree{Nodes: map[uint64]*files.Node{}}
	root, err := v.Root()
	if err != nil {
		return nil, err
	}
	defer root.Put()
	t.Root = uint64(root.Ino())
	return t, t.add("", root)
}

func (t *Tree) add(path string, i *ext4.Inode) error {
	ino := uint64(i.Ino())
	if n := t.Nodes[ino]; n != nil {
		if n.Type() == unix.S_IFDIR {
			return fmt.Errorf("%s: directory %d has two names", path, ino)
		}
		return nil
	}
	n, err := files.Read(path, i, true)
	if err != nil {
		return err
	}
	t.Nodes[ino] = n
	if n.Type() != unix.S_IFDIR {
		return nil
	}
	n.Entries = map[string]uint64{}
	return files.Children(path, i, func(name string, c *ext4.Inode) error {
		n.Entries[name] = uint64(c.Ino())
		return t.add(path+"/"+name, c)
	})
}

// same returns an error with the differences of a and b, nil if there are none.
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
		if d := n.Diff(m, func(at int) string {
			return fmt.Sprintf("content from byte %d: %s, and %s", at, identify(n.Content[at:], int64(at)), identify(m.Content[at:], int64(at)))
		}); d != "" {
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
