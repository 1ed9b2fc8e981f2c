package powercut

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"
)

// generator draws a worker's operations. What it draws depends only on its seed and on the results of earlier operations.
type generator struct {
	m      *model
	r      *rand.Rand
	maps   bool         // no fallocate
	weight [opKinds]int // how likely each kind is
	total  int
	files  int // most files at a time
	large  int64
	comb   bool // writes every other block, so that files have many extents

	// The files that exist, for the operation being drawn.
	regular, named, dirs []int
}

// weights of the operations, before they are varied for each worker.
var weights = [opKinds]int{opCreate: 60, opMkdir: 12, opSymlink: 10, opMknod: 3, opTmpfile: 12, opLink: 20, opUnlink: 40,
	opRmdir: 10, opRename: 40, opExchange: 10, opWrite: 200, opCopy: 15, opTruncate: 40, opAllocate: 25, opPunch: 25, opZero: 20,
	opSetxattr: 30, opRemovexattr: 10, opChmod: 10, opChown: 5, opOpen: 20, opClose: 20,
	opFsync: 60, opSync: 8, opTrim: 4}

func newGenerator(m *model, l *Layout, seed uint64) *generator {
	g := &generator{m: m, r: rand.New(rand.NewPCG(seed, uint64(m.worker))), maps: l.Maps}
	for k, w := range weights {
		// A tenth to three times: some workers mostly write, some mostly rename, some never sync.
		g.weight[k] = int(float64(w) * 10 * (0.1 + 2.9*g.r.Float64()*g.r.Float64()))
		if l.Maps && opKind(k) >= opAllocate && opKind(k) <= opZero {
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
	case 0: // files with many extents, from which pieces are punched or truncated: operations of several transactions
		g.comb, g.files = true, 8
		for k := opTruncate; k <= opZero; k++ {
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

// look lists the files that exist.
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

// dir draws a directory. Directories are not put into the shared one, because the models of all workers count its links.
func (g *generator) dir(forDir bool) int {
	for {
		d, _ := pick(g.r, g.dirs)
		if !forDir || d != sharedDir {
			return d
		}
	}
}
