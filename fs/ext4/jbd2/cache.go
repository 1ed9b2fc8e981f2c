package jbd2

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

const (
	// MinBlockSize and MaxBlockSize are the block sizes of ext4.
	MinBlockSize = 1 << 10
	MaxBlockSize = 64 << 10

	// DefaultCacheLimit is how many bytes of clean unused blocks a Cache keeps.
	DefaultCacheLimit = 256 << 20

	maxShards = 64
)

// CacheOptions of NewCache. The zero value takes defaults.
type CacheOptions struct {
	Limit  int64  // bytes of blocks kept without references, 0: DefaultCacheLimit
	Blocks uint64 // of the volume, 0: as many as the device holds
}

// Cache holds metadata blocks in pinned memory. All methods may be called from any goroutine.
type Cache struct {
	dev       blockdev.Device
	blockSize int
	blocks    Block // of the volume
	slots     *slots
	stage     *stage
	overlay   atomic.Pointer[Overlay]
	counters  counters
	flusher   flusher
	unflushed atomic.Pointer[flushError] // the flush that failed
	resident  atomic.Int64
	budget    budget
	super     blockdev.Buffer // what the journal's superblock is written from; set by OpenLog

	patience  time.Duration          // see makeRoom
	waiting   atomic.Int32           // callers that wait in makeRoom
	victim    atomic.Uint32          // the shard to evict from next
	writeHome atomic.Pointer[func()] // has blocks written home
	wakeMu    sync.Mutex
	woken     chan struct{} // protected by wakeMu: closed when a block becomes unused; nil if nothing waits

	perShard int64 // bytes that a shard may hold
	shards   []*shard
}

// shard is a part of the cache with a lock of its own.
type shard struct {
	cache  *Cache
	mu     sync.Mutex
	blocks map[Block]*Buffer // protected by mu
	lru    lru               // protected by mu: buffers with no reference
	bytes  int64             // protected by mu: of all buffers, detached ones too
}

// NewCache makes a cache of blockSize-byte blocks over dev. The device stays the caller's.
func NewCache(dev blockdev.Device, blockSize int, o CacheOptions) (*Cache, error) {
	info := dev.Info()
	if blockSize < MinBlockSize || blockSize > MaxBlockSize || blockSize&(blockSize-1) != 0 {
		return nil, fmt.Errorf("block size %d is not a power of two from %d to %d", blockSize, MinBlockSize, MaxBlockSize)
	}
	if blockdev.Bytes(blockSize)%info.BlockSize != 0 {
		return nil, fmt.Errorf("the volume's blocks of %d bytes are smaller than the device's of %d: use a namespace formatted with smaller LBAs",
			blockSize, info.BlockSize)
	}
	on := uint64(info.Size()) / uint64(blockSize)
	if o.Blocks == 0 || o.Blocks > on {
		o.Blocks = on
	}
	b, err := newBudget(dev, blockSize, o.Limit)
	if err != nil {
		return nil, err
	}
	n := maxShards
	for n > 1 && b.limit/int64(n) < 64*int64(blockSize) {
		n /= 2
	}
	c := &Cache{
		dev: dev, blockSize: blockSize, blocks: Block(o.Blocks), budget: b, patience: cachePatience,
		slots: newSlots(dev, blockSize), stage: newStage(dev, blockSize, b.stage),
		perShard: b.limit / int64(n),
	}
	for range n {
		c.shards = append(c.shards, &shard{cache: c, blocks: map[Block]*Buffer{}})
	}
	if mem, ok := dev.(blockdev.Bounded); ok {
		mem.OnShort(c.spare)
	}
	return c, nil
}

// Blocks is the number of blocks that can be asked for.
func (c *Cache) Blocks() uint64 { return uint64(c.blocks) }

// SetOverlay lets blocks be read from o where o has them: the replayed look of a volume whose log may not be written
// home. Blocks already in the cache stay; call Invalidate after it.
func (c *Cache) SetOverlay(o *Overlay) { c.overlay.Store(o) }

// Overlay is what SetOverlay was given, nil without one.
func (c *Cache) Overlay() *Overlay { return c.overlay.Load() }

// Stats is a snapshot of the counters.
func (c *Cache) Stats() Stats {
	return Stats{
		MetadataRead: c.counters.read.Load(), MetadataWritten: c.counters.written.Load(),
		JournalWritten: c.counters.log.Load(), Commits: c.counters.commits.Load(),
		Checkpoints: c.counters.checkpoints.Load(), Overruns: c.counters.overruns.Load(), FlushesShared: c.counters.flushesShared.Load(),
		Resident: c.resident.Load(), Staged: c.stage.bytes(),
	}
}

func (c *Cache) shardOf(b Block) *shard {
	// Neighbouring blocks go to different shards; the multiplier spreads strides too.
	return c.shards[(uint64(b)*0x9e3779b97f4a7c15>>32)%uint64(len(c.shards))]
}

func (c *Cache) off(b Block) blockdev.Bytes { return blockdev.Bytes(b) * blockdev.Bytes(c.blockSize) }

func (c *Cache) check(b Block) error {
	if b >= c.blocks {
		return fmt.Errorf("block %d is beyond the volume's %d blocks", b, c.blocks)
	}
	return nil
}

// lookup finds b or makes a buffer for it, with a reference. The load is nil when the contents are there; with mine the
// caller is the one that must fill the buffer and call finish, else it waits.
func (c *Cache) lookup(b Block) (buf *Buffer, l *load, mine bool, err error) {
	for {
		if buf, l, mine, err = c.tryLookup(b); err == nil {
			return buf, l, mine, nil
		}
		if err := c.makeRoom(err); err != nil {
			return nil, nil, false, fmt.Errorf("memory for block %d: %w", b, err)
		}
	}
}

// tryLookup is lookup without waiting: the error is that of asking for memory.
func (c *Cache) tryLookup(b Block) (buf *Buffer, l *load, mine bool, err error) {
	s := c.shardOf(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if buf := s.blocks[b]; buf != nil {
		buf.refLocked()
		return buf, buf.loading, false, nil
	}
	x, err := c.slots.take()
	if err != nil {
		return nil, nil, false, err
	}
	l = &load{done: make(chan struct{})}
	buf = &Buffer{cache: c, shard: s, block: b, slot: x, data: c.slots.slice(x).Bytes(), refs: 1, loading: l}
	s.blocks[b] = buf
	s.bytes += int64(c.blockSize)
	c.resident.Add(int64(c.blockSize))
	c.shrinkLocked(s)
	return buf, l, true, nil
}

// finish ends a load that lookup handed out.
func (b *Buffer) finish(l *load, err error) {
	l.err = err
	if err != nil {
		b.detach()
	} else {
		b.shard.mu.Lock()
		b.loading = nil
		b.shard.mu.Unlock()
	}
	close(l.done)
}

// wait waits until the contents are there. On an error the reference is dropped.
func (b *Buffer) wait(l *load) error {
	if l == nil {
		return nil
	}
	<-l.done // ends with the device's own deadline
	if l.err != nil {
		b.unref()
	}
	return l.err
}

func (c *Cache) freeLocked(s *shard, b *Buffer) {
	c.slots.give(b.slot)
	b.data = nil
	s.bytes -= int64(c.blockSize)
	c.resident.Add(-int64(c.blockSize))
	c.wakeWaiting()
}

// shrinkLocked evicts what was not used for longest until the shard is within its limit. Buffers in use stay.
func (c *Cache) shrinkLocked(s *shard) {
	for s.bytes > c.perShard && s.lru.tail != nil {
		s.dropLocked(s.lru.tail)
	}
}

// Invalidate drops every buffer without references, so that it is read again.
func (c *Cache) Invalidate() {
	for _, s := range c.shards {
		s.mu.Lock()
		for s.lru.tail != nil {
			s.dropLocked(s.lru.tail)
		}
		s.mu.Unlock()
	}
}

// Close gives the memory back. Close the Journal first; nothing may be in use any more.
func (c *Cache) Close() error {
	c.budget.release(c.dev)
	c.Invalidate()
	c.stage.close()
	c.slots.close()
	if c.super != nil {
		c.super.Release()
	}
	if n := c.resident.Load(); n != 0 {
		return fmt.Errorf("%d metadata blocks are still in use at close", n/int64(c.blockSize))
	}
	return nil
}
