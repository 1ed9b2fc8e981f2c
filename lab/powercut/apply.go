package powercut

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// apply makes the next state from operation o and its result.
func (m *model) apply(o op, r result) {
	m.now++
	changed := !r.NoSpace || o.kind.fileOp()
	meta := changed
	switch {
	case !changed:
	case o.kind.fileOp():
		meta = m.applyFile(&o, r)
	default:
		meta = m.applyName(&o)
	}
	last := m.meta[len(m.meta)-1]
	if meta {
		last = m.now
	}
	m.meta = append(m.meta, last)
	m.ops = append(m.ops, o)
	m.results = append(m.results, r)
}

// applyName is apply for what is not contents. It reports whether metadata changed.
func (m *model) applyName(o *op) bool {
	switch o.kind {
	case opCreate, opMkdir, opSymlink, opMknod:
		m.add(o.id, made(o))
		m.link(o.dir, o.name, o.id)
	case opTmpfile:
		m.add(o.id, made(o))
		m.held[o.id] = true
	case opLink:
		m.link(o.dir, o.name, o.id)
	case opUnlink, opRmdir:
		m.unlink(o.dir, o.name)
	case opRename:
		if _, ok := m.cur(o.dir2).entries[o.name2]; ok {
			m.unlink(o.dir2, o.name2)
		}
		m.unlink(o.dir, o.name)
		m.link(o.dir2, o.name2, o.id)
	case opExchange:
		other := m.cur(o.dir2).entries[o.name2]
		m.unlink(o.dir, o.name)
		m.unlink(o.dir2, o.name2)
		m.link(o.dir2, o.name2, o.id)
		m.link(o.dir, o.name, other)
	case opSetxattr, opRemovexattr:
		n := m.edit(o.id, true)
		n.xattrs = maps.Clone(n.xattrs)
		delete(n.xattrs, o.name)
		if o.kind == opSetxattr {
			n.xattrs[o.name] = o.value
		}
	case opChmod:
		n := m.edit(o.id, true)
		n.mode = n.kind() | o.mode
	case opChown:
		n := m.edit(o.id, true)
		n.uid, n.gid = o.uid, o.gid
	case opOpen, opClose:
		m.held[o.id] = o.kind == opOpen
		return false
	case opFsync:
		o.durability = m.cur(o.id).stored
		return false
	case opSync:
		o.durability = m.now
		return false
	case opTrim:
		return false
	}
	return true
}

func made(o *op) *node {
	n := &node{mode: o.mode, uid: o.uid, gid: o.gid, xattrs: map[string]string{}}
	switch o.kind {
	case opMkdir:
		n.entries = map[string]int{}
	case opSymlink:
		n.mode, n.target, n.size = unix.S_IFLNK|0o777, o.value, int64(len(o.value))
	}
	return n
}

func (m *model) link(dir int, name string, id int) {
	m.edit(dir, true).entries[name] = id
	m.edit(id, true).links++
	m.places[id] = append(m.places[id], place{dir, name})
}

func (m *model) unlink(dir int, name string) {
	d := m.edit(dir, true)
	id := d.entries[name]
	delete(d.entries, name)
	m.edit(id, true).links--
	m.places[id] = slices.DeleteFunc(m.places[id], func(p place) bool { return p == place{dir, name} })
}

// applyFile is apply for contents. It reports whether metadata changed.
func (m *model) applyFile(o *op, r result) bool {
	n := m.edit(o.id, false)
	old := *n
	bs := m.block
	end := o.off + o.n
	failed := r.NoSpace
	grown := false
	switch o.kind {
	case opWrite, opCopy:
		o.eachWrite(bs, r.N, func(x *op) { grown = m.write(n, x, min(r.N, x.n)) || grown })
		// The first r.N bytes are in the file. Blocks behind them that the file had before may have been overwritten, too.
		failed = failed && !o.flag && n.hasCells((o.off+r.N)/bs, (end+bs-1)/bs)
	case opTruncate:
		m.zeroBytes(n, o.n, min(n.size, (o.n+bs-1)/bs*bs))
		n.cells = n.cells[:min(len(n.cells), int((o.n+bs-1)/bs))]
		n.size = o.n
	case opAllocate:
		if failed {
			n.size, failed = r.N, false
		} else if !o.flag {
			n.size = max(n.size, end)
		}
	case opPunch:
		m.dropBytes(n, o.off, end, false)
	case opZero:
		m.dropBytes(n, o.off, end, true)
		if !o.flag {
			n.size = max(n.size, end)
		}
	}
	if failed {
		m.tainted[o.id] = m.now
	}
	switch o.kind {
	case opWrite, opCopy:
		if grown {
			n.stored = m.now
		}
		return grown
	case opAllocate:
		if n.size > old.size { // else there may have been nothing to do
			n.stored = m.now
		}
	default:
		n.stored = m.now
	}
	return true
}

// data is what o writes as operation k.
func (m *model) data(o *op, k int) []byte {
	b := make([]byte, o.n)
	if o.kind == opWrite {
		fill(b, stamp{uint8(m.worker), uint32(o.id), uint32(k)}, o.off)
		return b
	}
	src := m.cur(o.src)
	for i := range src.cells {
		if c := src.cells[i]; c.reads() {
			copyAt(b, c.last(), int64(i)*m.block-o.srcOff)
		}
	}
	return b
}

// copyAt puts src at off of dst, leaving out what does not fit.
func copyAt(dst, src []byte, off int64) {
	if off < 0 {
		src = src[min(int64(len(src)), -off):]
		off = 0
	}
	if off < int64(len(dst)) {
		copy(dst[off:], src)
	}
}

// write puts the first done bytes of what o writes into n. It reports whether the file got blocks or grew.
func (m *model) write(n *node, o *op, done int64) (grown bool) {
	if done == 0 {
		return false
	}
	b := m.data(o, m.now)[:done]
	bs := m.block
	for l := o.off / bs; l*bs < o.off+done; l++ {
		for int64(len(n.cells)) <= l {
			n.cells = append(n.cells, slot{})
		}
		p := make([]byte, bs)
		c := &n.cells[l]
		if c.reads() {
			copy(p, c.last())
		} else {
			grown = true
		}
		if c.unwritten = false; c.cell == nil {
			c.cell = &cell{}
		}
		copyAt(p, b, o.off-l*bs)
		m.put(c.cell, p)
	}
	if o.off+done > n.size {
		n.size, grown = o.off+done, true
	}
	return grown
}

// hasCells reports whether any of the logical blocks from l to end has bytes.
func (n *node) hasCells(l, end int64) bool {
	for ; l < min(end, int64(len(n.cells))); l++ {
		if n.cells[l].reads() {
			return true
		}
	}
	return false
}

func (m *model) put(c *cell, data []byte) {
	c.versions = append(c.versions, version{m.now, data})
}

// zeroBytes zeroes bytes [from, to), which lie in one block, in place.
func (m *model) zeroBytes(n *node, from, to int64) {
	l := from / m.block
	if from >= to || l >= int64(len(n.cells)) || !n.cells[l].reads() {
		return
	}
	p := slices.Clone(n.cells[l].last())
	clear(p[from-l*m.block : to-l*m.block])
	m.put(n.cells[l].cell, p)
}

// dropBytes makes bytes [from, to) read as zeroes: whole blocks are freed, or kept as unwritten or zeroed, and the rest is zeroed in
// place.
func (m *model) dropBytes(n *node, from, to int64, keep bool) {
	bs := m.block
	first, end := (from+bs-1)/bs, to/bs
	if first > end { // within one block
		m.zeroBytes(n, from, to)
		return
	}
	m.zeroBytes(n, from, first*bs)
	m.zeroBytes(n, end*bs, to)
	for l := first; l < min(end, int64(len(n.cells))); l++ {
		if c := &n.cells[l]; keep && c.reads() {
			// Without room for a node in the tree, zeroes are written in place instead (contents.unwrite).
			m.put(c.cell, make([]byte, bs))
			c.unwritten = true
		} else if !keep {
			*c = slot{}
		}
	}
}
