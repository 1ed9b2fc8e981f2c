// Package alloc gives out the blocks and inodes of a volume and takes them back.
//
// The nouns: a group is a run of blocks with a block bitmap, an inode bitmap, a piece of the inode table and a
// descriptor that counts what is free. An Allocator holds all descriptors of a volume and knows the system zones: the
// blocks that belong to superblocks, descriptors, bitmaps and inode tables, which are never given out or taken back.
// Bitmaps come through the cache when they are needed; what a group is known to have (its free blocks and its longest
// free run) is kept, so that a full group is passed over without looking at its bitmap.
//
// A block that was freed can be used again only after the transaction that freed it is durable: until then it is
// pending, free in the bitmap that will be written and taken in memory. FreeBlocks counts it, Alloc does not find it;
// Pending says how many there are, and so whether a commit may help after ErrNoSpace.
//
// Concurrency: each group has a lock; there is none for the volume. No lock is held while waiting for a commit, nor two
// groups' at once. I/O under a group's lock is the reading of its own bitmaps. docs/DESIGN.md has the order of locks.
//
// Every change is made under a jbd2.Handle of the caller, whose Undo takes it back: AllocCredits and FreeCredits say how many
// blocks it dirties.
//
// The format is [layout]: Linux Documentation/filesystems/ext4/, "Block and Inode Allocation Policy", "Block Group
// Descriptors", "Block and inode Bitmaps".
package alloc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Blocks that an operation dirties at most.
const (
	AllocCredits = 2 // a bitmap, a descriptor block
	FreeCredits  = 2 // for each group that the run touches
)

// Flags of Alloc.
const (
	// UseReserved lets the blocks be used that are reserved for the superuser.
	UseReserved = 1 << iota
	// UseNodes lets, beside these, the blocks be used that are kept for nodes of trees.
	UseNodes
)

// A write to what was preallocated splits an extent, and its tree may need a node: one whose space was promised must not fail because the volume has become full. So some blocks are kept for nodes, as many
// as the kernel keeps (/sys/fs/ext4/*/reserved_clusters): one of nodesPart, but nodesMost at most, and none on a volume without extents.
const (
	nodesPart = 50
	nodesMost = 4096
)

var (
	// ErrNoSpace is returned when no blocks are free that the caller may have. If Pending is not 0, a commit frees some.
	ErrNoSpace = errors.New("alloc: no free blocks")
	// ErrNoInodes is returned when no inode is free.
	ErrNoInodes = errors.New("alloc: no free inodes")
	// ErrReadOnly is returned for volumes whose allocation cannot be changed.
	ErrReadOnly = errors.New("alloc: volumes with bigalloc are not written to")
)

// Allocator is the free space of one volume. All methods may be called from any goroutine.
type Allocator struct {
	sb     *disk.Superblock
	cache  *jbd2.Cache
	groups []group
	descs  []*jbd2.Buffer // the descriptor blocks, held until Close; contents protected by the buffers' locks

	meta      zones                 // of the format itself
	protected atomic.Pointer[zones] // added by Protect
	protectMu sync.Mutex            // serialises Protect

	free       atomic.Int64  // blocks that are clear in the bitmaps
	avail      atomic.Int64  // of them, those that can be given out now and are not promised
	released   atomic.Uint64 // blocks that were pending and no longer are, of all time
	freeInodes atomic.Int64
	dirs       atomic.Int64
	reserved   atomic.Int64 // blocks for the superuser only
	nodes      int64        // blocks for nodes of trees only; constant after New
	discard    atomic.Pointer[func(disk.Block, uint32)]
	passOver   atomic.Pointer[func(err error, again bool) bool]
	passed     atomic.Uint64 // bitmaps that were passed over
	damage     error         // constant after New

	// AsValid is Valid, as a value that need not be made for each use.
	AsValid func(b disk.Block, n uint32) bool
	windows windows
}

// New loads the group descriptors. The geometry and features of sb must not change afterwards. Damage that does not keep
// files from being read is no error: Damage tells of it.
func New(sb *disk.Superblock, cache *jbd2.Cache) (*Allocator, error) {
	a := &Allocator{sb: sb, cache: cache}
	a.AsValid = a.Valid
	if uint64(cache.Blocks()) < sb.BlocksCount {
		return nil, disk.Corrupt("superblock", "%d blocks, the device holds %d", sb.BlocksCount, cache.Blocks())
	}
	if err := a.loadDescs(); err != nil {
		a.Close()
		return nil, err
	}
	a.reserved.Store(int64(sb.RBlocksCount))
	if sb.FeatureIncompat&disk.IncompatExtents != 0 {
		a.nodes = int64(min(sb.BlocksCount/nodesPart, nodesMost))
	}
	return a, nil
}

// Damage is what is wrong with the descriptors, nil if nothing is seen to be. The caller changes nothing on a volume
// with damage.
func (a *Allocator) Damage() error { return a.damage }

func (a *Allocator) damaged(err error) {
	if a.damage == nil {
		a.damage = err
	}
}

// Close releases the descriptor blocks. Every change is in the cache already.
func (a *Allocator) Close() {
	for _, d := range a.descs {
		d.Put()
	}
	a.descs = nil
}

func (a *Allocator) loadDescs() error {
	sb := a.sb
	n := sb.DescBlocks()
	var blocks []disk.Block
	for i := range n {
		b := sb.DescBlock(i)
		if !sb.ValidBlock(b) {
			return disk.Corrupt("superblock", "descriptor block %d would be block %d of %d", i, b, sb.BlocksCount)
		}
		blocks = append(blocks, disk.Block(b))
	}
	const batch = 256
	for len(blocks) > 0 {
		k := min(batch, len(blocks))
		bufs, err := a.cache.GetMany(blocks[:k]...)
		if err != nil {
			return fmt.Errorf("group descriptors: %w", err)
		}
		a.descs = append(a.descs, bufs...)
		blocks = blocks[k:]
	}
	a.groups = make([]group, sb.Groups())
	for i := range a.groups {
		g := &a.groups[i]
		if err := a.loadDesc(uint32(i), g); err != nil {
			return err
		}
		a.free.Add(int64(g.desc.FreeBlocksCount) << sb.ClusterBits())
		a.freeInodes.Add(int64(g.desc.FreeInodesCount))
		a.dirs.Add(int64(g.desc.UsedDirsCount))
	}
	a.avail.Store(a.free.Load())
	return a.findMeta()
}

func (a *Allocator) loadDesc(i uint32, g *group) error {
	block, off := a.sb.DescLocation(i)
	buf := a.descs[block]
	buf.RLock()
	defer buf.RUnlock()
	desc, err := a.sb.ReadGroup(i, buf.Data()[off:])
	if err != nil {
		return err
	}
	g.n = i
	g.blocks = a.sb.BlocksInGroup(i) >> a.sb.ClusterBits()
	if _, err := a.sb.DecodeGroup(i, buf.Data()[off:]); err != nil {
		a.damaged(err)
	} else if desc.FreeBlocksCount > g.blocks {
		a.damaged(disk.Corrupt(g.name(), "%d free blocks of %d", desc.FreeBlocksCount, g.blocks))
	} else if used := a.sb.InodesPerGroup - desc.FreeInodesCount; desc.UsedDirsCount > used {
		a.damaged(disk.Corrupt(g.name(), "%d directories among %d inodes", desc.UsedDirsCount, used))
	}
	desc.FreeBlocksCount = min(desc.FreeBlocksCount, g.blocks)
	desc.FreeInodesCount = min(desc.FreeInodesCount, a.sb.InodesPerGroup)
	desc.UsedDirsCount = min(desc.UsedDirsCount, a.sb.InodesPerGroup-desc.FreeInodesCount)
	g.desc = desc
	g.avail.Store(desc.FreeBlocksCount)
	g.freeInodes.Store(desc.FreeInodesCount)
	g.dirs.Store(desc.UsedDirsCount)
	g.longest.Store(desc.FreeBlocksCount)
	return nil
}

// InodeTable is the first block of a group's inode table.
func (a *Allocator) InodeTable(group uint32) disk.Block {
	return disk.Block(a.groups[group].desc.InodeTable) // never changes
}

// FreeBlocks is the number of free blocks, pending ones included: what statfs and the superblock say.
func (a *Allocator) FreeBlocks() uint64 { return uint64(max(a.free.Load(), 0)) }

// FreeInodes is the number of free inodes.
func (a *Allocator) FreeInodes() uint64 { return uint64(max(a.freeInodes.Load(), 0)) }

// Dirs is the number of directories.
func (a *Allocator) Dirs() uint64 { return uint64(max(a.dirs.Load(), 0)) }

// Pending is the number of freed blocks that wait for a commit, or for a discard, before they can be used again.
func (a *Allocator) Pending() uint64 {
	return uint64(max(a.free.Load()-a.avail.Load()-a.windows.held.Load(), 0))
}

// Released is the number of blocks that were pending and can be used again, since the volume was opened. Where it changes there may be room that an Alloc before did not find.
func (a *Allocator) Released() uint64 { return a.released.Load() }

// Overhead is the number of blocks that the format itself and what was protected take.
func (a *Allocator) Overhead() uint64 {
	n := uint64(a.sb.FirstDataBlock) + a.meta.size()
	if p := a.protected.Load(); p != nil {
		n += p.size()
	}
	return n
}

// SetDiscard has f, nil for none, called with runs of blocks whose freeing is durable, before they can be used again.
// It runs on the goroutine that commits.
func (a *Allocator) SetDiscard(f func(start disk.Block, n uint32)) {
	if f == nil {
		a.discard.Store(nil)
		return
	}
	a.discard.Store(&f)
}
