package jbd2

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// Room in the cache. A caller that needs memory for a block may hold handles and locks, so it waits neither for a commit nor for
// file data: the cache has its own memory, and forgets a block without references for each that is asked for. Only if all are in
// use, which the budget leaves room for, does the caller wait for one that is not.
const (
	cachePatience = 2 * time.Minute
	cacheTick     = 100 * time.Millisecond
)

// makeRoom returns when it is worth asking for a slot again. why is what the device said when it was asked for memory.
func (c *Cache) makeRoom(why error) error {
	if !errors.Is(why, blockdev.ErrNoMemory) {
		return why
	}
	deadline := time.Now().Add(c.patience)
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	for {
		freed := c.wake() // before looking, so that no block that becomes unused is missed
		switch {
		case c.evict(1) > 0 || c.slots.can():
			return nil
		case c.resident.Load() == 0:
			return why // there is nothing to evict
		case time.Now().After(deadline):
			return fmt.Errorf("all %d blocks of the metadata cache were in use for %v: %w", c.resident.Load()/int64(c.blockSize), c.patience, why)
		}
		if f := c.writeHome.Load(); f != nil {
			(*f)()
		}
		select {
		case <-freed:
		case <-time.After(cacheTick): // the device may have memory
		}
	}
}

// wake is closed when a block becomes unused.
func (c *Cache) wake() <-chan struct{} {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.woken == nil {
		c.woken = make(chan struct{})
	}
	return c.woken
}

// wakeWaiting wakes what waits for a block to be unused.
func (c *Cache) wakeWaiting() {
	if c.waiting.Load() == 0 {
		return
	}
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.woken != nil {
		close(c.woken)
		c.woken = nil
	}
}

// evict forgets up to n blocks without references, those of each shard that were not used for longest, and returns how many.
func (c *Cache) evict(n int) (evicted int) {
	first := int(c.victim.Add(1))
	for k := range c.shards {
		s := c.shards[(first+k)%len(c.shards)]
		s.mu.Lock()
		for evicted < n && s.lru.tail != nil {
			s.dropLocked(s.lru.tail)
			evicted++
		}
		s.mu.Unlock()
		if evicted == n {
			break
		}
	}
	return evicted
}

// spare gives back what the cache can do without. It is called when others have to wait for memory.
func (c *Cache) spare() {
	if c.resident.Load() > 0 {
		c.Invalidate()
		c.slots.trim()
	}
}

// dropLocked forgets a block without references.
func (s *shard) dropLocked(b *Buffer) {
	s.lru.remove(b)
	delete(s.blocks, b.block)
	b.detached = true
	s.cache.freeLocked(s, b)
}
