package fs

// maxIdle is how many nodes stay loaded that nobody uses: with their inodes about 3 MiB.
const maxIdle = 4096

// idleNodes is a list of the nodes that nobody uses, in the order of their last use. Protected by nodes.mu.
type idleNodes struct {
	newest, oldest *node
	len            int
}

func (l *idleNodes) add(n *node) {
	n.older, n.newer = l.newest, nil
	if l.newest != nil {
		l.newest.newer = n
	} else {
		l.oldest = n
	}
	l.newest = n
	l.len++
}

func (l *idleNodes) remove(n *node) {
	if n.newer != nil {
		n.newer.older = n.older
	} else {
		l.newest = n.older
	}
	if n.older != nil {
		n.older.newer = n.newer
	} else {
		l.oldest = n.newer
	}
	n.newer, n.older = nil, nil
	l.len--
}
