package volume

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// DirMap is where the blocks of a directory are, as far as somebody has asked. Each name that is looked for takes two blocks or three, and to find
// each in the directory's tree takes longer than to read it in the cache. A directory's blocks stay where they are: some are added, all
// are freed when it ends. So what is known stays true, unless an operation that added blocks is undone.
//
// A damaged directory may say that it has billions of blocks. So memory is taken for blocks that somebody has asked for, not for all that there are said to be.
type DirMap struct {
	known atomic.Pointer[[]atomic.Pointer[dirPart]] // nil: nothing is known of a part
}

// dirPart is where dirPartBlocks blocks are, one behind the other; 0: not known.
type dirPart [dirPartBlocks]atomic.Uint64

const (
	dirPartBlocks = 16
	// dirMapMost is how many blocks of a directory are noted, a GiB of 4 KiB each: those of 25 million names.
	dirMapMost = 1 << 18
)

// Get is where block l is, 0 if that is not known. Inode.Mu is held.
func (m *DirMap) Get(l uint32) disk.Block {
	if k := m.known.Load(); k != nil && l/dirPartBlocks < uint32(len(*k)) {
		if p := (*k)[l/dirPartBlocks].Load(); p != nil {
			return disk.Block(p[l%dirPartBlocks].Load())
		}
	}
	return 0
}

// Note says that block l is at b. Inode.Mu is held, maybe shared.
func (m *DirMap) Note(l uint32, b disk.Block) {
	if l >= dirMapMost {
		return
	}
	at := int(l / dirPartBlocks)
	k := m.known.Load()
	if k == nil || at >= len(*k) {
		n := at + 1
		if k != nil {
			n = max(n, 2*len(*k)) // it grows by a block at a time
		}
		more := make([]atomic.Pointer[dirPart], n)
		if k != nil {
			for i := range *k {
				more[i].Store((*k)[i].Load())
			}
		}
		if !m.known.CompareAndSwap(k, &more) {
			return // somebody else's is as good
		}
		k = &more
	}
	p := (*k)[at].Load()
	if p == nil {
		(*k)[at].CompareAndSwap(nil, new(dirPart))
		p = (*k)[at].Load()
	}
	p[l%dirPartBlocks].Store(uint64(b))
}

// Forget is called when blocks may have gone. Inode.Mu is held for writing.
func (m *DirMap) Forget() { m.known.Store(nil) }
