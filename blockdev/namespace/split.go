package namespace

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// limits says how much one command may carry.
type limits struct {
	blockSize blockdev.Bytes
	transfer  blockdev.Blocks // of a read or write
	zeroes    blockdev.Blocks // of a write zeroes; 0: the command does not exist
	boundary  blockdev.Blocks // reads and writes do not cross a multiple of it; 0: none
	ranges    int             // of one discard; 0: the command does not exist
	perRange  blockdev.Blocks // of one of its ranges
	perDSM    blockdev.Blocks // of all of them
}

// maxNLB is the largest number of blocks of a command (NVM §3.2: a 0's based field of 16 bits).
const maxNLB blockdev.Blocks = 1 << 16

// maxRanges is the largest number of ranges of Dataset Management (NVM §3.2.3: a 0's based field of 8 bits).
const maxRanges = 256

// piece is a part of a request that fits one command. Its memory, if any, is contiguous in I/O virtual addresses; lanes make PRPs of it.
type piece struct {
	req  *blockdev.Request
	op   blockdev.Op
	lba  blockdev.LBA
	n    blockdev.Blocks
	iova nvme.IOVA
}

// place is the I/O virtual address of a slice.
type place func(blockdev.Slice) nvme.IOVA

// split appends the pieces of r to out. r has passed Check.
//
// Slices whose I/O virtual addresses follow one another are one run, whichever buffers they belong to. A run is cut only where a limit
// requires it, so a request makes as few commands as its memory allows.
func (l *limits) split(out []piece, r *blockdev.Request, where place) []piece {
	lba := blockdev.LBA(r.Off / l.blockSize)
	switch r.Op {
	case blockdev.OpFlush:
		return append(out, piece{req: r, op: blockdev.OpFlush})
	case blockdev.OpDiscard:
		return l.cut(out, piece{req: r, op: r.Op, lba: lba, n: blockdev.Blocks(r.Len / l.blockSize)}, l.perRange, 0)
	case blockdev.OpWriteZeroes:
		return l.cut(out, piece{req: r, op: r.Op, lba: lba, n: blockdev.Blocks(r.Len / l.blockSize)}, l.zeroes, 0)
	}
	var run piece
	for _, s := range r.Bufs {
		if s.N == 0 {
			continue
		}
		n, at := blockdev.Blocks(blockdev.Bytes(s.N)/l.blockSize), where(s)
		if run.n > 0 && run.iova+nvme.IOVA(run.n)*nvme.IOVA(l.blockSize) == at {
			run.n += n
			continue
		}
		out = l.cut(out, run, l.transfer, l.boundary)
		run = piece{req: r, op: r.Op, lba: lba + blockdev.LBA(run.n), n: n, iova: at}
		lba = run.lba
	}
	return l.cut(out, run, l.transfer, l.boundary)
}

// cut appends p in parts of at most size blocks that do not cross a multiple of boundary.
func (l *limits) cut(out []piece, p piece, size, boundary blockdev.Blocks) []piece {
	for p.n > 0 {
		part := p
		part.n = min(p.n, size)
		if boundary > 0 {
			part.n = min(part.n, boundary-blockdev.Blocks(p.lba)%boundary)
		}
		out = append(out, part)
		p.lba += blockdev.LBA(part.n)
		p.n -= part.n
		if p.op == blockdev.OpRead || p.op == blockdev.OpWrite {
			p.iova += nvme.IOVA(part.n) * nvme.IOVA(l.blockSize)
		}
	}
	return out
}

// gather groups discards into as few commands as the limits allow; each group is one command.
func (l *limits) gather(discards []piece) [][]piece {
	var groups [][]piece
	var total blockdev.Blocks
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
