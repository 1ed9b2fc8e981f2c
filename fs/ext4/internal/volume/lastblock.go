package volume

import (
	"sync"
	"sync/atomic"
)

// A program that writes a log, or a database's write-ahead log, writes small pieces one behind the other. Each begins in the block in which the one before ended, so
// that block would be read again each time to be written as a whole. LastBlocks has a copy of it, of a few files.
//
// A copy is what the volume has, as long as nothing else writes to the file. So whatever takes the file's Mu for writing drops it, but for a write that
// goes on with it (Op.LockToWrite), and so does whatever writes to blocks under Mu shared.
type LastBlocks [lastBlocks]lastBlock

const lastBlocks = 32

// lastBlock is the place for the copies of the files whose numbers fall on it, one at a time.
type lastBlock struct {
	ino  atomic.Uint32 // 0: none. Written under mu
	mu   sync.Mutex
	l    uint32 // protected by mu
	data []byte // protected by mu
}

func (b *LastBlocks) of(i *Inode) *lastBlock { return &b[i.ino%lastBlocks] }

// Copy copies block l of the file to p, a block long. It reports false if there is no copy. Mu is held for writing.
func (b *LastBlocks) Copy(i *Inode, l uint32, p []byte) bool {
	x := b.of(i)
	if x.ino.Load() != i.ino {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ino.Load() != i.ino || x.l != l {
		return false
	}
	copy(p, x.data)
	return true
}

// Keep keeps a copy of block l, which has just been written. Mu is held for writing since before.
func (b *LastBlocks) Keep(i *Inode, l uint32, p []byte) {
	x := b.of(i)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.l, x.data = l, append(x.data[:0], p...)
	x.ino.Store(i.ino)
}

// Drop is called before the file is written to. Mu is held.
func (b *LastBlocks) Drop(i *Inode) {
	if x := b.of(i); x.ino.Load() == i.ino {
		x.mu.Lock()
		x.ino.CompareAndSwap(i.ino, 0)
		x.mu.Unlock()
	}
}
