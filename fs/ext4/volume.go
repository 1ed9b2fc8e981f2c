package ext4

import (
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// FS is a mounted volume. docs/DESIGN.md has the order of its locks, and of those of the packages below.
type FS struct {
	dev   blockdev.Device
	opt   Options
	bs    int  // bytes in a block
	bits  uint // log2(bs)
	seed  uint32
	cache *jbd2.Cache
	jnl   *jbd2.Journal
	alloc *alloc.Allocator

	sb    *disk.Superblock // geometry and features are constant
	sbMu  sync.Mutex       // protects the other members of sb, and sbBuf's contents
	sbBuf *jbd2.Buffer

	logged     bool   // commits go to the log: a power cut leaves a volume that recovers
	journalIno *Inode // nil without a journal

	xattrs      *xattr.Format
	sharedXattr sync.Mutex // protects the reference counts of attribute blocks; taken under a handle

	fast *fastCommits // to be replayed before the mount is done

	found JournalState // the journal as the mount found it
	doubt string       // why e2fsck has to see the volume before it is written; "" if it has not

	inodes     inodeTable
	orphans    orphans
	late       lateAccess
	unfinished unfinished
	renameMu   sync.Mutex

	readOnly  atomic.Bool // asked for, or since an error
	mounted   bool        // Open went well: what is met from now on is noted
	errored   atomic.Bool // corruption was met and noted
	largeFile atomic.Bool // the superblock has large_file
	extAttr   atomic.Bool // and ext_attr
	stats     struct{ dataRead, dataWritten, superRead, superWritten atomic.Int64 }
}

// Open mounts the volume on dev. It takes no ownership of dev: the caller closes it after Close.
func Open(dev blockdev.Device, opt Options) (*FS, error) {
	if opt.CommitInterval == 0 {
		opt.CommitInterval = 5 * time.Second
	}
	if opt.Logf == nil {
		opt.Logf = log.Printf
	}
	if opt.Panic == nil {
		opt.Panic = func(err error) { panic(err) }
	}
	sb, err := readSuperblock(dev)
	if err != nil {
		return nil, err
	}
	ro := opt.ReadOnly || dev.Info().ReadOnly
	if err := checkFeatures(sb, &ro, opt.Logf); err != nil {
		return nil, err
	}
	if err := checkGeometry(sb, dev); err != nil {
		return nil, err
	}
	v := &FS{dev: dev, opt: opt, sb: sb, bs: sb.BlockSize(), bits: sb.BlockBits(), seed: sb.CsumSeed()}
	v.readOnly.Store(ro)
	v.largeFile.Store(sb.FeatureROCompat.Has(disk.ROCompatLargeFile))
	v.extAttr.Store(sb.FeatureCompat.Has(disk.CompatExtAttr))
	v.stats.superRead.Store(superblockRead(dev))
	v.inodes.m = make(map[uint32]*Inode)
	v.xattrs = xattr.New(sb)
	if err := v.start(); err != nil {
		return nil, errors.Join(err, v.abandon())
	}
	v.mounted = true
	return v, nil
}

// superblockRead is how many bytes readSuperblock reads: whole blocks of the device.
func superblockRead(dev blockdev.Device) int64 {
	return max(disk.SuperblockOffset+disk.SuperblockSize, int64(dev.Info().BlockSize))
}

// readSuperblock returns a superblock also beside the error that its checksum is wrong.
func readSuperblock(dev blockdev.Device) (*disk.Superblock, error) {
	if dev.Info().Size() < disk.SuperblockOffset+disk.SuperblockSize {
		return nil, fmt.Errorf("%s is %d bytes: too small for an ext4 volume", dev.Info().Name, dev.Info().Size())
	}
	n := int(superblockRead(dev))
	buf, err := dev.Alloc(n)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	if err := dev.Read(0, buf.Slice(0, n)); err != nil {
		return nil, err
	}
	sb, err := disk.DecodeSuperblock(buf.Bytes()[disk.SuperblockOffset:])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
	}
	if err := sb.VerifyChecksum(); err != nil {
		return sb, fmt.Errorf("%s: %w; run e2fsck on it", dev.Info().Name, err)
	}
	return sb, nil
}

func checkGeometry(sb *disk.Superblock, dev blockdev.Device) error {
	info := dev.Info()
	if int(info.BlockSize) > sb.BlockSize() {
		return fmt.Errorf("%s: blocks of %d bytes are smaller than the device's of %d", info.Name, sb.BlockSize(), info.BlockSize)
	}
	if have := uint64(info.Size()) >> sb.BlockBits(); have < sb.BlocksCount {
		return fmt.Errorf("%s is truncated: the volume has %d blocks of %d bytes, the device only %d",
			info.Name, sb.BlocksCount, sb.BlockSize(), have)
	}
	return nil
}

// start builds the layers from the bottom up: buffers, journal, allocator, root directory, orphans.
func (v *FS) start() error {
	var err error
	v.cache, err = jbd2.NewCache(v.dev, v.bs, jbd2.CacheOptions{Limit: v.opt.CacheSize})
	if err != nil {
		return err
	}
	log, err := v.recoverJournal()
	if err != nil {
		return err
	}
	if v.alloc, err = alloc.New(v.sb, v.cache); err != nil {
		return v.note(err)
	}
	damage := v.alloc.Damage()
	if damage == nil {
		if damage = v.protectJournal(); damage != nil && !isCorrupt(damage) {
			return damage // what can't be read is not damaged by that
		}
	}
	v.distrust(log, damage)
	if err := v.startJournal(log); err != nil {
		return err
	}
	root, err := v.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	if !root.d.IsDir() {
		return v.note(disk.Corrupt("inode 2", "the root is not a directory"))
	}
	if v.ReadOnly() {
		return nil
	}
	orphans, err := v.readOrphans()
	if isCorrupt(err) {
		v.leaveOrphans(orphans, err)
		return nil
	}
	if err != nil {
		return err
	}
	v.sbBuf, err = v.cache.Get(jbd2.Block(v.sb.SuperBlockNo()))
	if err != nil {
		return err
	}
	if err := v.markMounted(); err != nil {
		return err
	}
	if orphans, err = v.replayFastCommits(orphans); err != nil {
		return v.note(err)
	}
	v.startDiscard()
	return v.finishOrphans(orphans)
}

// markMounted records in the superblock that the volume is in use.
func (v *FS) markMounted() error {
	return v.writeSuper(func(sb *disk.Superblock) {
		sb.Mtime = uint64(time.Now().Unix())
		sb.MntCount++
		if v.logged {
			sb.FeatureIncompat |= disk.IncompatRecover
		} else {
			sb.State &^= disk.StateValid
		}
		if sb.FeatureCompat.Has(disk.CompatOrphanFile) {
			sb.FeatureROCompat |= disk.ROCompatOrphanPresent
		}
	})
}

// encodeSuper changes the superblock in memory and in sbBuf. sbMu is held.
func (v *FS) encodeSuper(f func(*disk.Superblock)) {
	f(v.sb)
	v.sb.FreeBlocksCount = v.alloc.FreeBlocks()
	v.sb.FreeInodesCount = uint32(v.alloc.FreeInodes())
	v.sb.Wtime = uint64(time.Now().Unix())
	v.sbBuf.Lock()
	v.sb.EncodeStable(v.sbBuf.Data()[disk.SuperblockOffset&(v.bs-1):])
	v.sbBuf.Unlock()
}

// updateSuper changes the superblock under h. Whoever needs it undone tells OnUndo.
func (v *FS) updateSuper(h *jbd2.Handle, f func(*disk.Superblock)) {
	v.sbMu.Lock()
	defer v.sbMu.Unlock()
	v.encodeSuper(f)
	h.DirtyShared(v.sbBuf)
}

// Sync makes everything durable that was done before it.
func (v *FS) Sync() (err error) {
	defer v.noteTo(&err)
	if v.opt.ReadOnly {
		return nil
	}
	if v.readOnly.Load() { // since an error, of which whoever asks is told
		return v.jnl.Commit()
	}
	return errors.Join(v.settleAllAccess(), v.jnl.Commit())
}

// Close makes everything durable, marks the volume clean and lets go of it. The caller has dropped every Inode.
func (v *FS) Close() error {
	v.closeAccess()
	v.unfinished.close()
	err := v.note(v.jnl.Close()) // commits, and empties the log
	if v.sbBuf != nil && err == nil {
		err = v.writeSuper(func(sb *disk.Superblock) {
			sb.FeatureIncompat &^= disk.IncompatRecover
			if v.errored.Load() {
				return // e2fsck says when it is clean again
			}
			sb.State |= disk.StateValid
			if !v.orphans.any() {
				sb.FeatureROCompat &^= disk.ROCompatOrphanPresent
			}
		})
	}
	v.jnl = nil
	return errors.Join(err, v.abandon())
}

// abandon releases what start built.
func (v *FS) abandon() error {
	var err error
	if v.jnl != nil {
		err = v.jnl.Close()
	}
	if v.alloc != nil {
		v.alloc.Close()
	}
	if v.sbBuf != nil {
		v.sbBuf.Put()
		v.sbBuf = nil
	}
	if v.cache != nil {
		err = errors.Join(err, v.cache.Close())
	}
	return err
}

func (v *FS) name() string { return v.dev.Info().Name }

// ReadOnly says whether the volume refuses changes: asked for, required by its features, or since an error, also that of a
// commit after which nobody has tried to change anything yet.
func (v *FS) ReadOnly() bool {
	return v.readOnly.Load() || v.jnl != nil && errors.Is(v.jnl.Err(), jbd2.ErrAborted)
}

// BlockSize is the volume's block size in bytes.
func (v *FS) BlockSize() int { return v.bs }

// Statfs reports sizes and what is free.
func (v *FS) Statfs() Statfs {
	free := v.alloc.FreeBlocks()
	v.sbMu.Lock()
	defer v.sbMu.Unlock()
	return Statfs{
		BlockSize:   v.bs,
		Blocks:      v.sb.BlocksCount - v.alloc.Overhead(),
		Overhead:    v.alloc.Overhead(),
		BlocksFree:  free,
		BlocksAvail: free - min(free, v.sb.RBlocksCount),
		Inodes:      uint64(v.sb.InodesCount),
		InodesFree:  v.alloc.FreeInodes(),
		MaxName:     255,
		UUID:        v.sb.UUID,
		ReservedUID: v.sb.DefResuid,
		ReservedGID: v.sb.DefResgid,
	}
}

// Stats is a snapshot of the counters.
func (v *FS) Stats() Stats {
	c := v.cache.Stats()
	return Stats{
		DataRead: v.stats.dataRead.Load(), DataWritten: v.stats.dataWritten.Load(),
		MetadataRead: c.MetadataRead + v.stats.superRead.Load(), MetadataWritten: c.MetadataWritten + v.stats.superWritten.Load(),
		JournalWritten: c.JournalWritten, Commits: c.Commits,
	}
}
