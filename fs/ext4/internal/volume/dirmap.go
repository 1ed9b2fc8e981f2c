package volume

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// DirMap is where the blocks of a directory are, as far as somebody has asked. Each name that is looked for takes two blocks or three, and to find
// each in the directory's tree takes longer than to read it in the cache. A directory's blocks stay where they are: some are added, all
// are freed when it ends. So what is known stays true, unless an operation that added blocks is undone.
type DirMap struct {
	known atomic.Pointer[[]atomic.Uint64] // 0: not known
}

// Get is where block l is, 0 if that is not known. Inode.Mu is held.
func (m *DirMap) Get(l uint32) disk.Block {
	if k := m.known.Load(); k != nil && l < uint32(len(*k)) {
		return disk.Block((*k)[l].Load())
	}
	return 0
}

// Note says that block l of so many is at b. Inode.Mu is held, maybe shared.
func (m *DirMap) Note(l, blocks uint32, b disk.Block) {
	k := m.known.Load()
	if k == nil || l >= uint32(len(*k)) {
		n := int(max(blocks, l+1))
		if k != nil {
			n = max(n, 2*len(*k)) // it grows by a block at a time
		}
		more := make([]atomic.Uint64, n)
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
	(*k)[l].Store(uint64(b))
}

// Forget is called when blocks may have gone. Inode.Mu is held for writing.
func (m *DirMap) Forget() { m.known.Store(nil) }
