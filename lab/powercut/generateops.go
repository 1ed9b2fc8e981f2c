package powercut

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func (g *generator) makeOp(o *op) bool {
	if len(g.named) >= g.files && g.r.IntN(10) > 0 {
		return false
	}
	o.id, o.dir = g.m.next, g.dir(o.kind == opMkdir)
	o.name = g.name(o.dir)
	o.mode = []uint32{0o644, 0o600, 0o755, 0o4711}[g.r.IntN(4)]
	o.uid, o.gid = uint32(g.r.IntN(3))*70000, uint32(g.r.IntN(2))
	switch o.kind {
	case opCreate, opTmpfile:
		o.mode |= unix.S_IFREG
	case opMkdir:
		o.mode |= unix.S_IFDIR
	case opMknod:
		o.mode |= unix.S_IFIFO
	case opSymlink:
		o.value = strings.Repeat(fmt.Sprintf("to%d/", o.id), 1+g.r.IntN(12)*g.r.IntN(12))
		if g.r.IntN(3) == 0 { // a long one is a block that looks like one of the journal's own
			o.value = "\xc0\x3b\x39\x98" + o.value
		}
	}
	if o.kind == opTmpfile {
		o.name = ""
	}
	return true
}

func (g *generator) nameOp(o *op) bool {
	m, r := g.m, g.r
	var ok bool
	if o.kind == opLink {
		if o.id, ok = pick(r, g.regular); !ok {
			return false
		}
		o.dir = g.dir(false)
		o.name = g.name(o.dir)
		return m.cur(o.id).links < 20
	}
	if o.id, ok = pick(r, g.named); !ok {
		return false
	}
	n := m.cur(o.id)
	p := m.places[o.id][r.IntN(len(m.places[o.id]))]
	o.dir, o.name = p.dir, p.name
	isDir := n.kind() == unix.S_IFDIR
	switch o.kind {
	case opUnlink:
		return !isDir
	case opRmdir:
		return isDir && len(n.entries) == 0
	}
	o.dir2 = g.dir(isDir)
	if o.kind == opExchange || r.IntN(3) == 0 { // over another
		other, _ := pick(r, g.named)
		q := m.places[other][r.IntN(len(m.places[other]))]
		o.dir2, o.name2 = q.dir, q.name
		t := m.cur(other)
		otherDir := t.kind() == unix.S_IFDIR
		switch {
		case other == o.id:
			return false
		case o.kind == opRename && (isDir != otherDir || otherDir && len(t.entries) > 0):
			return false
		case isDir && o.dir2 == sharedDir, otherDir && o.dir == sharedDir:
			return false
		case o.kind == opExchange && otherDir && m.below(o.dir, other):
			return false
		}
	} else {
		o.name2 = g.name(o.dir2)
	}
	return !isDir || !m.below(o.dir2, o.id)
}

// below says whether directory d is dir or lies below it.
func (m *model) below(d, dir int) bool {
	for d != dir {
		if d == ownDir || d == sharedDir {
			return false
		}
		d = m.places[d][0].dir
	}
	return true
}

func (g *generator) otherOp(o *op) bool {
	m, r := g.m, g.r
	ok := true
	switch o.kind {
	case opSync, opTrim:
	case opOpen:
		if o.id, ok = pick(r, g.regular); ok {
			ok = !m.held[o.id]
		}
	case opClose:
		o.id, ok = pick(r, g.regular)
		ok = ok && m.held[o.id]
	case opFsync:
		if r.IntN(4) == 0 {
			o.id, ok = pick(r, g.dirs)
		} else {
			o.id, ok = pick(r, g.regular)
			o.flag = r.IntN(3) == 0
		}
	case opChmod, opChown, opSetxattr:
		if o.id, ok = pick(r, g.named); !ok {
			return false
		}
		if m.cur(o.id).kind() == unix.S_IFLNK || o.kind == opSetxattr && m.cur(o.id).kind() == unix.S_IFIFO {
			return false
		}
		o.mode = uint32(r.IntN(0o7777))
		if m.cur(o.id).kind() == unix.S_IFDIR {
			o.mode &^= unix.S_ISGID // new files there would inherit the group
		}
		o.uid, o.gid = uint32(r.IntN(1000)), uint32(r.IntN(1<<31))
		o.name = []string{"user.", "trusted."}[r.IntN(2)] + fmt.Sprintf("x%d", r.IntN(8))
		o.value = strings.Repeat(fmt.Sprintf("%d,", m.now), r.IntN(1+r.IntN(60)))
	case opRemovexattr:
		if o.id, ok = pick(r, g.named); !ok {
			return false
		}
		var names []string
		for name := range m.cur(o.id).xattrs {
			names = append(names, name)
		}
		if len(names) == 0 {
			return false
		}
		slices.Sort(names)
		o.name = names[r.IntN(len(names))]
	}
	return ok
}

// maxSize bounds a file.
const maxSize = 2 << 20

func (g *generator) fileOp(o *op) bool {
	m, r, bs := g.m, g.r, g.m.block
	var ok bool
	if o.id, ok = pick(r, g.regular); !ok || m.tainted[o.id] > 0 {
		return false
	}
	size := m.cur(o.id).size
	length := func() int64 {
		switch r.IntN(6) {
		case 0:
			return 1 + r.Int64N(100)
		case 1:
			return bs * (1 + r.Int64N(4))
		case 2:
			return 1 + r.Int64N(g.large)
		}
		return 1 + r.Int64N(5*bs)
	}
	offset := func(end int64) int64 {
		x := r.Int64N(end + 1)
		if r.IntN(2) == 0 {
			x = x / bs * bs
		}
		return x
	}
	o.n, o.flag = length(), r.IntN(2) == 0
	switch o.kind {
	case opWrite:
		switch r.IntN(8) {
		case 0, 1, 2:
			o.off = size
		case 3: // sparse
			o.off = offset(min(2*size+64*bs, maxSize))
		default:
			o.off = offset(size)
		}
		if r.IntN(3) == 0 {
			o.off, o.n = o.off/bs*bs, (o.n+bs-1)/bs*bs
		}
		if o.flag = g.comb && r.IntN(4) == 0; o.flag {
			o.off, o.n = offset(size)/bs*bs, bs*(1+r.Int64N(100))
			return o.off+2*o.n <= maxSize
		}
	case opCopy:
		if o.src, ok = pick(r, g.regular); !ok || m.tainted[o.src] > 0 || m.cur(o.src).size == 0 {
			return false
		}
		o.off, o.srcOff = offset(size), offset(m.cur(o.src).size-1)
		o.n = min(o.n, m.cur(o.src).size-o.srcOff, 128<<10)
	case opTruncate:
		o.off, o.n = 0, offset(size)
		if r.IntN(3) == 0 {
			o.n = offset(size + 20*bs)
		}
	case opAllocate, opPunch, opZero:
		o.off = offset(size + 4*bs)
		if r.IntN(3) == 0 {
			o.n = min(o.n*8, 256<<10)
		}
		if o.kind == opPunch && size > 0 && r.IntN(4) > 0 {
			o.off = offset(size - 1)
		}
	}
	return o.off+o.n <= maxSize
}
