package blockdev

import "github.com/lanefs/lanefs/nvmeq"

// limits is what one command may carry.
type limits struct {
	blockSize Bytes
	transfer  Blocks // of a read or write
	zeroes    Blocks // of a write zeroes; 0: the command does not exist
	boundary  Blocks // reads and writes do not cross a multiple of it; 0: no such rule
	ranges    int    // of one discard; 0: the command does not exist
	perRange  Blocks // of one of its ranges
	perDSM    Blocks // of all of them
}

// maxNLB is what the number of blocks of a command can say (NVM §3.2: 16 bits, less one).
const maxNLB Blocks = 1 << 16

// maxRanges is how many ranges Dataset Management can carry (NVM §3.2.3: 8 bits, less one).
const maxRanges = 256

// piece is a part of a request that fits one command. Its memory, if it has any, is linear for the controller: lanes
// turn it into PRPs.
type piece struct {
	req  *Request
	op   Op
	lba  LBA
	n    Blocks
	iova nvmeq.IOVA
}

// place says where the controller sees a slice.
type place func(Slice) nvmeq.IOVA

// split appends the pieces of r to out. r has passed Check.
//
// Slices that follow one another in memory as the controller sees it are one run, whichever buffers they belong to. A
// run is cut where the limits say and nowhere else, so a request makes as few commands as its memory allows.
func (l *limits) split(out []piece, r *Request, where place) []piece {
	lba := LBA(r.Off / l.blockSize)
	switch r.Op {
	case OpFlush:
		return append(out, piece{req: r, op: OpFlush})
	case OpDiscard:
		return l.cut(out, piece{req: r, op: r.Op, lba: lba, n: Blocks(r.Len / l.blockSize)}, l.perRange, 0)
	case OpWriteZeroes:
		return l.cut(out, piece{req: r, op: r.Op, lba: lba, n: Blocks(r.Len / l.blockSize)}, l.zeroes, 0)
	}
	var run piece
	for _, s := range r.Bufs {
		if s.N == 0 {
			continue
		}
		n, at := Blocks(Bytes(s.N)/l.blockSize), where(s)
		if run.n > 0 && run.iova+nvmeq.IOVA(run.n)*nvmeq.IOVA(l.blockSize) == at {
			run.n += n
			continue
		}
		out = l.cut(out, run, l.transfer, l.boundary)
		run = piece{req: r, op: r.Op, lba: lba + LBA(run.n), n: n, iova: at}
		lba = run.lba
	}
	return l.cut(out, run, l.transfer, l.boundary)
}

// cut appends p in parts of at most size blocks that do not cross a multiple of boundary.
func (l *limits) cut(out []piece, p piece, size, boundary Blocks) []piece {
	for p.n > 0 {
		part := p
		part.n = min(p.n, size)
		if boundary > 0 {
			part.n = min(part.n, boundary-Blocks(p.lba)%boundary)
		}
		out = append(out, part)
		p.lba += LBA(part.n)
		p.n -= part.n
		if p.op == OpRead || p.op == OpWrite {
			p.iova += nvmeq.IOVA(part.n) * nvmeq.IOVA(l.blockSize)
		}
	}
	return out
}

// gather groups discards into as few commands as the limits allow; each group is one command.
func (l *limits) gather(discards []piece) [][]piece {
	var groups [][]piece
	var total Blocks
	start := 0
	for i, p := range discards {
		if i > start && (i-start == l.ranges || total+p.n > l.perDSM) {
			groups = append(groups, discards[start:i])
			start, total = i, 0
		}
		total += p.n
	}
	if start < len(discards) {
		groups = append(groups, discards[start:])
	}
	return groups
}
