package jbd2

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// budget is how the device's pinned memory is divided, so that no commit waits for memory that waits for the commit:
//
//   - a transaction has at most txn bytes; so much staging memory is pinned when the journal starts, and stays;
//   - staging memory has at most stage bytes, two transactions or more: the rest holds copies that are not home yet. A commit
//     that finds too little has the checkpointer write them home, for which it needs no memory;
//   - the cache always gets least bytes: the blocks of the running transaction, those of which staging has copies, and some that
//     are only looked at. It makes room by forgetting blocks without references.
//
// On a device whose memory is bounded that much is reserved, and what the cache may keep; a small pool makes small transactions.
type budget struct {
	txn   int64
	stage int64
	least int64
	limit int64 // bytes that the cache keeps
}

const (
	maxStage    = 96 << 20
	stageShare  = 8       // of a small pool, one part in so many is staging
	minTxn      = 256     // blocks: what the smallest log allows
	minLookedAt = 1 << 20 // bytes
	singles     = 2 << 20 // for blockdev.ForBlock
	reserveUnit = 2 << 20 // what the pool reserves is a multiple of it
)

// newBudget divides and reserves. The cache is to keep limit bytes, 0: as much as suits.
func newBudget(dev blockdev.Device, blockSize int, limit int64) (b budget, err error) {
	bs, pinned := int64(blockSize), int64(dev.Info().Pinned)
	b.stage = maxStage
	if pinned > 0 {
		b.stage = min(pinned/stageShare, maxStage)
	}
	up := func(n int64) int64 { return (n + reserveUnit - 1) / reserveUnit * reserveUnit }
	b.stage = max(b.stage/reserveUnit*reserveUnit, up(2*minTxn*bs))
	b.txn = min(maxTransactionBytes, b.stage/2)
	b.least = up(b.txn + b.stage + max(minLookedAt, 64*bs))
	mem, ok := dev.(blockdev.Bounded)
	if !ok {
		if b.limit = limit; limit <= 0 {
			b.limit = DefaultCacheLimit
		}
		return b, nil
	}
	for use := blockdev.ForBlock; use <= blockdev.ForJournal; use++ {
		if err := mem.Reserve(use, 0); err != nil {
			return b, err
		}
	}
	room := mem.Room(blockdev.ForCache) - b.stage - singles
	data := pinned - mem.Room(blockdev.ForCache)
	// A larger pool has more for file data: up to a quarter, of a small one 4 MiB.
	needs := b.stage + singles + b.least
	enough := max(needs+data, (4*needs+2)/3)
	switch {
	case room < b.least:
		return b, fmt.Errorf("%d bytes of pinned memory are too few for a volume with blocks of %d: file data has %d of them, the journal needs %d "+
			"and the metadata cache %d; give pinned=%dM or more", pinned, bs, data, b.stage+singles, b.least, (enough+1<<20-1)>>20)
	case limit > room:
		return b, fmt.Errorf("cache=%d does not fit into %d bytes of pinned memory: file data has %d of them and the journal %d, which leaves %d "+
			"for the metadata cache; give a smaller cache= or a larger pinned=", limit, pinned, data, b.stage+singles, room)
	case limit <= 0:
		limit = min(DefaultCacheLimit, max(b.least, pinned/4), room)
	}
	b.limit = limit
	for use, n := range map[blockdev.Use]int64{blockdev.ForBlock: singles, blockdev.ForCache: max(b.least, limit), blockdev.ForJournal: b.stage} {
		if err := mem.Reserve(use, n); err != nil {
			return b, err
		}
	}
	return b, nil
}

// release ends what newBudget reserved.
func (b *budget) release(dev blockdev.Device) {
	if mem, ok := dev.(blockdev.Bounded); ok {
		mem.OnShort(nil)
		for use := blockdev.ForBlock; use <= blockdev.ForJournal; use++ {
			_ = mem.Reserve(use, 0)
		}
	}
}
