package powercut

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/files"
)

// check returns an error unless t, recovered after a cut at a position of the recording, is a state that the worker's part of
// the volume may have. With all set, every operation must be done and durable.
func (m *model) check(t *Tree, cut int, lba int, all bool) error {
	c := &checker{m: m, t: t, lba: int64(lba), synced: map[int]int{}}
	c.low, c.high = m.bounds(cut, c.synced, &c.allSynced)
	if all {
		c.low, c.high, c.allSynced = m.now, m.now, m.now
	}
	for k := c.low; k <= c.high; k++ {
		if c.state(k, 0) == nil || k < c.high && m.ops[k].kind.steps() && c.state(k, m.ops[k].id) == nil {
			return nil
		}
	}
	return c.explain()
}

// steps reports whether an operation may take several transactions, so that a cut can leave it done in part.
func (k opKind) steps() bool { return k.fileOp() && k != opTruncate }

// bounds returns the first and the last state that the volume can have after a cut: state low is durable, operations after
// high had not begun. It sets synced for files, and all for the whole volume, to the last operation whose data is durable.
func (m *model) bounds(cut int, synced map[int]int, all *int) (low, high int) {
	high = sort.Search(len(m.results), func(i int) bool { return m.results[i].Start > cut })
	for i := range high {
		o, r := &m.ops[i], &m.results[i]
		if r.End < 0 || r.End > cut {
			continue
		}
		low = max(low, o.durability)
		switch o.kind {
		case opFsync:
			synced[o.id] = i + 1
		case opSync:
			*all = i + 1
		}
	}
	return low, high
}

type checker struct {
	m         *model
	t         *Tree
	lba       int64
	low, high int
	synced    map[int]int
	allSynced int

	// Of the hypothesis being tested: state k, with operation k+1 on file partial done in part.
	k, partial int
	inodes     map[int]uint64
	all        bool // collect every difference, not only the first
	diffs      []string
}

// state compares the tree with state k. partial, if not 0, is the file of operation k+1, of which a part may be done.
func (c *checker) state(k, partial int) error {
	c.k, c.partial, c.inodes, c.diffs = k, partial, map[int]uint64{}, nil
	root := c.t.Nodes[c.t.Root]
	own, ok := root.Entries[c.m.top[ownDir]]
	shared, ok2 := root.Entries[c.m.top[sharedDir]]
	if !ok || !ok2 {
		return fmt.Errorf("the directories of worker %d are gone", c.m.worker)
	}
	if !c.node(c.m.top[ownDir], ownDir, own) || !c.entries(c.m.top[sharedDir], c.m.at(sharedDir, k), c.t.Nodes[shared], c.m.owns) ||
		!c.contents() {
		return fmt.Errorf("%s", c.diffs)
	}
	return nil
}

// wrong records a difference. It reports whether to continue.
func (c *checker) wrong(format string, args ...any) bool {
	c.diffs = append(c.diffs, fmt.Sprintf(format, args...))
	return c.all
}

// node compares everything but contents. It returns false to stop, as the other comparisons here do.
func (c *checker) node(path string, id int, ino uint64) bool {
	if seen, ok := c.inodes[id]; ok {
		return seen == ino || c.wrong("%s: inode %d, elsewhere %d", path, ino, seen)
	}
	c.inodes[id] = ino
	want, have := c.m.at(id, c.k), c.t.Nodes[ino]
	links := want.links
	if want.kind() == unix.S_IFDIR {
		links = 2
		for _, e := range want.entries {
			if c.m.at(e, c.k).kind() == unix.S_IFDIR {
				links++
			}
		}
	}
	size := have.Type() == unix.S_IFDIR || have.Size == want.size || c.m.isTainted(id, c.high) || id == c.partial && c.partialSize(have.Size)
	ok := true
	if want.mode != have.Mode || want.uid != have.UID || want.gid != have.GID {
		ok = c.wrong("%s: mode %o of %d:%d, should be %o of %d:%d", path, have.Mode, have.UID, have.GID, want.mode, want.uid, want.gid)
	}
	if ok && links != int(have.Links) {
		ok = c.wrong("%s: %d links, should be %d", path, have.Links, links)
	}
	if ok && !size {
		ok = c.wrong("%s: size %d, should be %d", path, have.Size, want.size)
	}
	if ok && want.target != have.Target {
		ok = c.wrong("%s: target %q, should be %q", path, have.Target, want.target)
	}
	if ok && !maps.Equal(want.xattrs, have.Xattrs) {
		ok = c.wrong("%s: xattrs %.300q, should be %.300q", path, have.Xattrs, want.xattrs)
	}
	return ok && c.entries(path, want, have, nil)
}

// entries compares directories.
func (c *checker) entries(path string, want *node, have *files.Node, mine func(string) bool) bool {
	for name, ino := range have.Entries {
		if mine != nil && !mine(name) {
			continue
		}
		id, ok := want.entries[name]
		if !ok {
			if !c.wrong("%s/%s: should not be there", path, name) {
				return false
			}
		} else if !c.node(path+"/"+name, id, ino) {
			return false
		}
	}
	for name := range want.entries {
		if _, ok := have.Entries[name]; !ok && !c.wrong("%s/%s: is missing", path, name) {
			return false
		}
	}
	return true
}

func (m *model) isTainted(id, high int) bool {
	t := m.tainted[id]
	return t > 0 && t <= high
}

// partialSize reports whether a file may have a size while operation k+1 is in progress.
func (c *checker) partialSize(size int64) bool {
	old, now := c.m.at(c.partial, c.k).size, c.m.at(c.partial, c.k+1).size
	return size == now || size > old && size < now && size%c.m.block == 0
}

// contents compares the files' bytes.
func (c *checker) contents() bool {
	for _, id := range slices.Sorted(maps.Keys(c.inodes)) {
		have := c.t.Nodes[c.inodes[id]]
		if have.Type() == unix.S_IFREG && !c.m.isTainted(id, c.high) && !c.content(id, have.Content) {
			return false
		}
	}
	return true
}

func (c *checker) content(id int, have []byte) bool {
	// If metadata of operation k is there, so is all data written before it.
	durable := max(c.m.meta[c.k], c.synced[id], c.allSynced)
	want := c.m.at(id, c.k)
	var next *node
	if id == c.partial {
		next = c.m.at(id, c.k+1)
	}
	bs := int(c.m.block)
	for l := 0; l*bs < len(have); l++ {
		b := have[l*bs : min((l+1)*bs, len(have))]
		options := [][]version{possible(want, l, durable, c.high)}
		if next != nil {
			options = append(options, possible(next, l, durable, c.high))
		}
		for off := int64(0); off < int64(len(b)); off += c.lba {
			s := b[off:min(off+c.lba, int64(len(b)))]
			if !anyHas(options, s, off) && !c.wrong("file %d, bytes from %d: %s; %s", id, int64(l*bs)+off, identify(s, int64(l*bs)+off),
				describe(options, off, len(s), int64(l*bs)+off)) {
				return false
			}
		}
	}
	return true
}

// possible is what block l of a file in state n may hold: the last version that is durable, and what operations up to
// high wrote over it. nil is zeroes.
func possible(n *node, l, durable, high int) []version {
	if l >= len(n.cells) || !n.cells[l].reads() {
		return nil
	}
	v := n.cells[l].versions
	first, end := 0, 0
	for i := range v {
		if v[i].op <= durable {
			first = i
		}
		if v[i].op <= high {
			end = i + 1
		}
	}
	return v[first:max(end, first+1)]
}

func anyHas(options [][]version, s []byte, off int64) bool {
	for _, o := range options {
		if o == nil {
			if bytes.Count(s, []byte{0}) == len(s) {
				return true
			}
			continue
		}
		for _, v := range o {
			if bytes.Equal(v.data[off:off+int64(len(s))], s) {
				return true
			}
		}
	}
	return false
}

// describe lists the bytes that may be there.
func describe(options [][]version, off int64, n int, at int64) string {
	s := "allowed:"
	for _, o := range options {
		if o == nil {
			s += " zeroes;"
		}
		for _, v := range o {
			s += fmt.Sprintf(" %s (as of operation %d);", identify(v.data[off:off+int64(n)], at), v.op)
		}
	}
	return s
}

// explain returns the error for a tree that is none of the states: its differences from the nearest one.
func (c *checker) explain() error {
	c.all = true
	best, bestK := []string(nil), -1
	for k := c.low; k <= c.high; k++ {
		c.state(k, 0)
		if bestK < 0 || len(c.diffs) < len(best) {
			best, bestK = c.diffs, k
		}
	}
	s := fmt.Sprintf("worker %d: the tree is none of its states %d to %d (operations durable, and begun, at the cut); state %d is the nearest:",
		c.m.worker, c.low, c.high, bestK)
	slices.Sort(best)
	for i, d := range best {
		if i == 12 {
			s += fmt.Sprintf("\n    and %d more", len(best)-i)
			break
		}
		s += "\n    " + d
	}
	s += "\n  operations:"
	for k := max(c.low-3, 1); k <= min(c.high, c.low+200); k++ {
		r := c.m.results[k-1]
		s += fmt.Sprintf("\n    %d: %v (log %d to %d, %d, no space %v)", k, &c.m.ops[k-1], r.Start, r.End, r.N, r.NoSpace)
	}
	return fmt.Errorf("%s", s)
}
