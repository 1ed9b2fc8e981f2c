package powercut

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// generator draws a worker's operations. What it draws depends on its seed and on how earlier operations ended, on
// nothing else.
type generator struct {
	m      *model
	r      *rand.Rand
	maps   bool         // no fallocate
	weight [opKinds]int // how likely each kind is
	total  int
	files  int // most files at a time
	large  int64
	comb   bool // writes every other block, so that files have many extents

	// What there is, for the operation being drawn.
	regular, named, dirs []int
}

// weights before each worker's own taste is applied.
var weights = [opKinds]int{opCreate: 60, opMkdir: 12, opSymlink: 10, opMknod: 3, opTmpfile: 12, opLink: 20, opUnlink: 40,
	opRmdir: 10, opRename: 40, opExchange: 10, opWrite: 200, opCopy: 15, opTruncate: 40, opAllocate: 25, opPunch: 25, opZero: 20,
	opCollapse: 20, opInsert: 20, opSetxattr: 30, opRemovexattr: 10, opChmod: 10, opChown: 5, opOpen: 20, opClose: 20,
	opFsync: 60, opSync: 8, opTrim: 4}

func newGenerator(m *model, l *Layout, seed uint64) *generator {
	g := &generator{m: m, r: rand.New(rand.NewPCG(seed, uint64(m.worker))), maps: l.Maps}
	for k, w := range weights {
		// A tenth to three times: some workers mostly write, some mostly rename, some never sync.
		g.weight[k] = int(float64(w) * 10 * (0.1 + 2.9*g.r.Float64()*g.r.Float64()))
		if l.Maps && opKind(k) >= opAllocate && opKind(k) <= opInsert {
			g.weight[k] = 0
		}
	}
	switch g.r.IntN(4) {
	case 0: // many names: directories that split
		g.weight[opCreate] *= 8
		g.files = 200
	case 1: // few files, much writing
		g.weight[opWrite] *= 3
		g.files = 6
	default:
		g.files = 30
	}
	g.large = 64 << 10
	if g.r.IntN(3) == 0 {
		g.large = 512 << 10
	}
	switch g.r.IntN(3) {
	case 0: // files with many extents, of which it cuts pieces: operations that take several transactions
		g.comb, g.files = true, 8
		for k := opTruncate; k <= opInsert; k++ {
			g.weight[k] *= 3
		}
	case 1: // many transactions
		g.weight[opFsync] *= 4
	}
	for _, w := range g.weight {
		g.total += w
	}
	return g
}

// next draws an operation that is possible now.
func (g *generator) next() op {
	g.look()
	for {
		x := g.r.IntN(g.total)
		k := opKind(0)
		for ; x >= g.weight[k]; k++ {
			x -= g.weight[k]
		}
		o := op{kind: k}
		ok := false
		switch {
		case k.fileOp():
			ok = g.fileOp(&o)
		case k <= opTmpfile:
			ok = g.makeOp(&o)
		case k <= opExchange:
			ok = g.nameOp(&o)
		default:
			ok = g.otherOp(&o)
		}
		if ok {
			return o
		}
	}
}

// look lists what there is.
func (g *generator) look() {
	m := g.m
	g.regular, g.named, g.dirs = g.regular[:0], g.named[:0], append(g.dirs[:0], ownDir, sharedDir)
	for id := 2; id < m.next; id++ {
		if len(m.hist[id]) == 0 {
			continue
		}
		n := m.cur(id)
		if n.links > 0 {
			g.named = append(g.named, id)
			if n.kind() == unix.S_IFDIR {
				g.dirs = append(g.dirs, id)
			}
		}
		if n.kind() == unix.S_IFREG && (n.links > 0 || m.held[id]) {
			g.regular = append(g.regular, id)
		}
	}
}

func pick(r *rand.Rand, list []int) (int, bool) {
	if len(list) == 0 {
		return 0, false
	}
	// The newest are the most likely.
	if k := len(list); r.IntN(2) == 0 && k > 4 {
		return list[k-1-r.IntN(4)], true
	}
	return list[r.IntN(len(list))], true
}

// name draws a name that dir does not have.
func (g *generator) name(dir int) string {
	for {
		s := fmt.Sprintf("f%d", g.r.IntN(100000))
		switch g.r.IntN(6) {
		case 0:
			s += strings.Repeat("n", g.r.IntN(200))
		case 1:
			s += strings.Repeat("ü", g.r.IntN(20))
		}
		if dir == sharedDir {
			s = g.m.top[ownDir] + "-" + s
		}
		if _, ok := g.m.cur(dir).entries[s]; !ok {
			return s
		}
	}
}

// dir draws a directory; what is a directory itself does not go to the shared one, whose links all workers count.
func (g *generator) dir(forDir bool) int {
	for {
		d, _ := pick(g.r, g.dirs)
		if !forDir || d != sharedDir {
			return d
		}
	}
}

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
			o.mode &^= unix.S_ISGID // what is made there would inherit the group
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
	case opCollapse:
		blocks := size / bs
		if blocks < 2 {
			return false
		}
		o.off = r.Int64N(blocks) * bs
		o.n = (1 + r.Int64N(min(blocks, 8))) * bs
		return o.off+o.n < size
	case opInsert:
		if size == 0 {
			return false
		}
		o.off = (r.Int64N(size)) / bs * bs
		o.n = (1 + r.Int64N(8)) * bs
		return size+o.n <= maxSize
	}
	return o.off+o.n <= maxSize
}
