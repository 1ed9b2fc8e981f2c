package jbd2

import (
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Block is a file-system block number, as ext4 has it.
type Block = disk.Block

// Buffer is one metadata block in memory. Its embedded RWMutex protects the contents: hold it for reading while looking
// at Data, for writing from the first change until after Handle.Dirty.
type Buffer struct {
	sync.RWMutex

	cache    *Cache
	shard    *shard
	block    Block
	data     []byte
	slot     slot
	verified atomic.Bool

	// txn is the running transaction that the buffer is dirty in. Written under Journal.mu.
	txn atomic.Pointer[transaction]

	// Protected by shard.mu.
	refs       int     // users, and transactions that have not written the buffer home yet
	loading    *load   // nil once the contents are there
	detached   bool    // no longer in the map: freed when refs drops to 0
	prev, next *Buffer // in the shard's list, while refs is 0
}

// load is a read in flight that several may wait for.
type load struct {
	done chan struct{}
	err  error // valid once done is closed
}

// Data is the block's contents, as long as the device's view of it: one block. Valid until Put.
func (b *Buffer) Data() []byte { return b.data }

// Block is the number of the block.
func (b *Buffer) Block() Block { return b.block }

// Verified says whether SetVerified was called since the contents were read: its checksum need not be checked again.
func (b *Buffer) Verified() bool { return b.verified.Load() }

// SetVerified notes that the contents were checked.
func (b *Buffer) SetVerified() { b.verified.Store(true) }

// Put drops a reference taken by Get or New.
func (b *Buffer) Put() { b.unref() }

func (b *Buffer) ref() {
	b.shard.mu.Lock()
	b.refLocked()
	b.shard.mu.Unlock()
}

func (b *Buffer) refLocked() {
	if b.refs == 0 && !b.detached {
		b.shard.lru.remove(b)
	}
	b.refs++
}

func (b *Buffer) unref() {
	s := b.shard
	s.mu.Lock()
	b.refs--
	switch {
	case b.refs < 0:
		s.mu.Unlock()
		panic("jbd2: Put of a buffer without references")
	case b.refs > 0:
	case b.detached:
		s.cache.freeLocked(s, b)
	default:
		s.lru.push(b)
		s.cache.shrinkLocked(s)
		s.cache.wakeWaiting()
	}
	s.mu.Unlock()
}

// detach takes the buffer out of the map: its block was freed or could not be read.
func (b *Buffer) detach() {
	s := b.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.detached {
		return
	}
	b.detached = true
	delete(s.blocks, b.block)
	if b.refs == 0 {
		s.lru.remove(b)
		s.cache.freeLocked(s, b)
	}
}
