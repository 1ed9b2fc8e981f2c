package softctl

// table is the address table at one moment. It is never changed: Map and Unmap make another, which shares with it all but the
// path to what differs. So readers need no lock, and a table of many mappings is changed as fast as a small one.
type table struct{ root *node }

// node is one of a binary tree that is ordered by base, and a heap by priority (a treap): its depth is logarithmic, whatever is
// mapped and unmapped in whatever order.
type node struct {
	r           *region
	left, right *node
}

// priority of a base: a fixed hash (the end of SplitMix64), so that the tree's shape depends on nothing but what is in it.
func priority(base uint64) uint64 {
	base = (base ^ base>>30) * 0xbf58476d1ce4e5b9
	base = (base ^ base>>27) * 0x94d049bb133111eb
	return base ^ base>>31
}

// insert gives the tree with r, whose base is in none of its nodes.
func (n *node) insert(r *region) *node {
	switch {
	case n == nil:
		return &node{r: r}
	case priority(r.base) > priority(n.r.base):
		left, right := n.split(r.base)
		return &node{r, left, right}
	case r.base < n.r.base:
		return &node{n.r, n.left.insert(r), n.right}
	}
	return &node{n.r, n.left, n.right.insert(r)}
}

// split gives what lies below base, and the rest.
func (n *node) split(base uint64) (below, rest *node) {
	switch {
	case n == nil:
		return nil, nil
	case n.r.base < base:
		below, rest = n.right.split(base)
		return &node{n.r, n.left, below}, rest
	}
	below, rest = n.left.split(base)
	return below, &node{n.r, rest, n.right}
}

// remove gives the tree without the region at base, and whether there was one.
func (n *node) remove(base uint64) (_ *node, found bool) {
	switch {
	case n == nil:
		return nil, false
	case n.r.base == base:
		return merge(n.left, n.right), true
	case base < n.r.base:
		left, found := n.left.remove(base)
		return &node{n.r, left, n.right}, found
	}
	right, found := n.right.remove(base)
	return &node{n.r, n.left, right}, found
}

// merge gives a tree of two, of which all of one lies below all of the other.
func merge(below, rest *node) *node {
	switch {
	case below == nil:
		return rest
	case rest == nil:
		return below
	case priority(below.r.base) > priority(rest.r.base):
		return &node{below.r, below.left, merge(below.right, rest)}
	}
	return &node{rest.r, merge(below, rest.left), rest.right}
}

// find gives the region that holds all of [a, a+n), and a's offset in it. hint is the caller's last hit in this table.
func (t *table) find(a, n uint64, hint **region) (*region, int64, bool) {
	r := *hint
	if r == nil || a-r.base >= r.size {
		r = nil
		for at := t.root; at != nil; {
			if at.r.base > a {
				at = at.left
			} else {
				r, at = at.r, at.right
			}
		}
		if r == nil {
			return nil, 0, false
		}
		*hint = r
	}
	o := a - r.base
	if o >= r.size || n > r.size-o {
		return nil, 0, false
	}
	return r, int64(o), true
}
