package softctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// The Host Memory Buffer ([BASE] 8.9): memory of the host that the controller has for itself, from a Set Features to the one that ends it, or to a reset. A drive without DRAM keeps its
// tables there; this controller has none, and keeps a word in each page of it, which says whether the host has left the memory alone.

// hostBufferUnit is the unit of what Identify says, and the least of a page.
const hostBufferUnit = 4096

type hostBuffer struct {
	mu     sync.Mutex
	pieces []hostPiece // protected by mu; nil while the feature is off
	list   uint64      // protected by mu: where the host's list of pieces is
	page   uint64      // protected by mu: CC.MPS in bytes
	broken error       // protected by mu: what the host has done to it; never cleared
}

// hostPiece is n bytes at an address.
type hostPiece struct{ at, n uint64 }

// HostBuffer is how many bytes of the host's memory the controller has, and whether the host has written there or taken it away meanwhile, now or before.
func (c *Controller) HostBuffer() (int64, error) {
	b := &c.hostBuffer
	b.check(c.dma)
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(b.size()), b.broken
}

func (b *hostBuffer) size() (n uint64) {
	for _, p := range b.pieces {
		n += p.n
	}
	return n
}

// reset follows a reset of the controller, which does not touch the memory any more.
func (b *hostBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pieces = nil
}

// word is what the controller keeps at an address.
func (p hostPiece) word(i uint64) uint64 { return (p.at + i) * 0x9e3779b97f4a7c15 }

// check compares what the controller keeps in the memory.
func (b *hostBuffer) check(dma *addressSpace) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pieces {
		for i := uint64(0); i < p.n && b.broken == nil; i += hostBufferUnit {
			var w [8]byte
			switch {
			case !dma.read(w[:], p.at+i):
				b.broken = fmt.Errorf("the host took away %#x of its memory buffer, which the controller uses", p.at+i)
			case binary.LittleEndian.Uint64(w[:]) != p.word(i):
				b.broken = fmt.Errorf("the host wrote to %#x of its memory buffer, which the controller uses", p.at+i)
			}
		}
	}
}

// getHostBuffer is Get Features ([BASE] 5.27.1.10): dword 0, and where the buffer is.
func (c *Controller) getHostBuffer(q *subQueue, cmd *command, byDefault bool) (Status, uint32) {
	b := &c.hostBuffer
	b.mu.Lock()
	defer b.mu.Unlock()
	var data [hostBufferUnit]byte
	if b.pieces == nil || byDefault {
		return c.reply(q, cmd, data[:]), 0
	}
	le := binary.LittleEndian
	le.PutUint32(data[0:], uint32(b.size()/b.page))
	le.PutUint64(data[4:], b.list)
	le.PutUint32(data[12:], uint32(len(b.pieces)))
	return c.reply(q, cmd, data[:]), 1
}

// setHostBuffer is Set Features. CDW11 says on or off, CDW12 the size in pages, CDW13 to 15 where the list of pieces is and how many it has.
func (c *Controller) setHostBuffer(cmd *command) Status {
	b := &c.hostBuffer
	on := cmd.cdw11&1 != 0
	if !on {
		b.check(c.dma)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !on {
		b.pieces = nil
		return success
	}
	if b.pieces != nil {
		return commandSequenceError
	}
	b.page, b.list = uint64(c.cc.pageSize()), uint64(cmd.cdw14)<<32|uint64(cmd.cdw13)
	size := uint64(cmd.cdw12) * b.page
	if size < uint64(c.opt.HostBufferLeast) || b.list%16 != 0 {
		return invalidField
	}
	pieces, err := c.hostPieces(b.list, cmd.cdw15, b.page)
	if err != nil {
		c.log.Warn("host memory buffer refused", "why", err)
		return invalidField
	}
	b.pieces = pieces
	if b.size() != size {
		b.pieces = nil
		return invalidField
	}
	for _, p := range pieces {
		for i := uint64(0); i < p.n; i += hostBufferUnit {
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], p.word(i))
			if !c.dma.write(p.at+i, w[:]) {
				b.pieces = nil
				return dataTransferError
			}
		}
	}
	return success
}

// hostPieces reads the list of n pieces at an address.
func (c *Controller) hostPieces(list uint64, n uint32, page uint64) ([]hostPiece, error) {
	const entry, most = 16, 4096
	if n == 0 || n > most {
		return nil, fmt.Errorf("a list of %d pieces", n)
	}
	var pieces []hostPiece
	for i := range uint64(n) {
		var e [entry]byte
		if !c.dma.read(e[:], list+i*entry) {
			return nil, errors.New("the list is not mapped")
		}
		p := hostPiece{binary.LittleEndian.Uint64(e[0:]), uint64(binary.LittleEndian.Uint32(e[8:])) * page}
		if p.n == 0 || p.at%page != 0 {
			return nil, fmt.Errorf("a piece of %d bytes at %#x, pages have %d", p.n, p.at, page)
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}
