package volume

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// FS is a mounted volume. docs/DESIGN.md has the order of its locks, and of those of the packages below.
type FS struct {
	Dev       blockdev.Device
	Opt       Options
	BlockSize int  // bytes in a block
	BlockBits uint // log2(BlockSize)
	Seed      uint32
	Cache     *jbd2.Cache
	Journal   *jbd2.Journal
	Alloc     *alloc.Allocator

	Super   *disk.Superblock // geometry and features are constant
	SuperMu sync.Mutex       // protects the other members of Super, and sbBuf's contents
	sbBuf   *jbd2.Buffer

	Logged bool                               // commits go to the log: a power cut leaves a volume that recovers
	end    func(i *Inode, deleted bool) error // see New

	LastBlocks  LastBlocks // of files that are written in small pieces
	XattrFormat *xattr.Format
	sharedXattr sync.Mutex // protects the reference counts of attribute blocks; taken under a handle

	Times *latency.Layer // of changes, syncs and commits

	FsckReason string // why e2fsck has to see the volume before it is written; "" if it has not

	inodes     inodeTable
	orphans    orphans
	late       lateAccess
	unfinished unfinished
	renameMu   sync.Mutex

	readOnly  atomic.Bool // asked for, or since an error
	Mounted   bool        // Open went well: what is met from now on is noted
	errored   atomic.Bool // corruption was met and noted
	met       errorsMet
	remedy    atomic.Pointer[string] // what to do about that; nil until then
	stopped   atomic.Pointer[string] // what to do when the journal was stopped without an error of the volume; nil: it was not
	largeFile atomic.Bool            // the superblock has large_file
	extAttr   atomic.Bool            // and ext_attr
	Counters  struct{ DataRead, DataWritten, CopiedRead, CopiedWritten, superRead, superWritten atomic.Int64 }
}

// New is the volume on dev with its superblock read and nothing else. The last Put of an inode without links calls end to
// free it, deleted set; that of one whose truncation failed half-way calls it to do the rest.
func New(dev blockdev.Device, opt Options, end func(i *Inode, deleted bool) error) (*FS, error) {
	if opt.CommitInterval == 0 {
		opt.CommitInterval = 5 * time.Second
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Log = opt.Log.With("volume", dev.Info().Name)
	if opt.Panic == nil {
		opt.Panic = func(err error) { panic(err) }
	}
	sb, err := ReadSuperblock(dev)
	if err != nil {
		return nil, err
	}
	ro := opt.ReadOnly || dev.Info().ReadOnly
	if err := checkFeatures(sb, &ro, opt.Log); err != nil {
		return nil, err
	}
	if err := checkGeometry(sb, dev); err != nil {
		return nil, err
	}
	v := &FS{Dev: dev, Opt: opt, end: end, Super: sb, BlockSize: sb.BlockSize(), BlockBits: sb.BlockBits(), Seed: sb.CsumSeed(), Times: NewTimes()}
	v.readOnly.Store(ro)
	v.largeFile.Store(sb.FeatureROCompat.Has(disk.ROCompatLargeFile))
	v.extAttr.Store(sb.FeatureCompat.Has(disk.CompatExtAttr))
	v.Counters.superRead.Store(superblockRead(dev))
	v.inodes.m = make(map[uint32]*Inode)
	v.XattrFormat = xattr.New(sb)
	v.Cache, err = jbd2.NewCache(v.Dev, v.BlockSize, jbd2.CacheOptions{Limit: v.Opt.CacheSize})
	return v, err
}

// Sync makes everything durable that was done before it.
func (v *FS) Sync() (err error) {
	defer v.NoteTo(&err)
	if v.Opt.ReadOnly {
		return nil
	}
	if v.readOnly.Load() { // since an error, which Commit returns
		return v.Journal.Commit()
	}
	return errors.Join(v.settleAllAccess(), v.Journal.Commit())
}

// Close makes everything durable, marks the volume clean and releases what it had. The caller has dropped every Inode.
func (v *FS) Close() error {
	v.closeAccess()
	v.unfinished.close()
	err := v.Note(v.Journal.Close()) // commits, and empties the log
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
	v.Journal = nil
	return errors.Join(err, v.Abandon())
}

// Abandon releases what start built.
func (v *FS) Abandon() error {
	var err error
	if v.Journal != nil {
		err = v.Journal.Close()
	}
	if v.Alloc != nil {
		v.Alloc.Close()
	}
	if v.sbBuf != nil {
		v.sbBuf.Put()
		v.sbBuf = nil
	}
	if v.Cache != nil {
		err = errors.Join(err, v.Cache.Close())
	}
	return err
}

// Writable says whether the volume takes changes: unless reading was all that was asked for, and until an error is noted.
func (v *FS) Writable() bool { return !v.readOnly.Load() }

// MetError says whether this mount has met an error that e2fsck is to look at.
func (v *FS) MetError() bool { return v.errored.Load() }

// Reasons say why this mount takes no changes any more, and what to do: nothing as long as it does.
func (v *FS) Reasons() (all []string) {
	if v.errored.Load() {
		remedy := "run e2fsck on it"
		if r := v.remedy.Load(); r != nil {
			remedy = *r
		}
		all = append(all, "this mount has met an error: "+remedy)
	}
	if why := v.stopped.Load(); why != nil {
		all = append(all, "writes to the device were refused: "+*why)
	}
	return all
}

// Name is what errors call the volume: its device.
func (v *FS) Name() string { return v.Dev.Info().Name }

// ReadOnly says whether the volume refuses changes: asked for, required by its features, or since an error, also that of a
// commit after which no change was tried yet.
func (v *FS) ReadOnly() bool {
	return v.readOnly.Load() || v.Journal != nil && errors.Is(v.Journal.Err(), jbd2.ErrAborted)
}

// Held is what keeps changes from being committed, nil if nothing does: the medium has no room, or there is no memory. See
// jbd2.Held.
func (v *FS) Held() *jbd2.Held { return v.Journal.Held() }

// Settle makes everything durable, and writes home what the log holds, as Close does, while the volume goes on. An error says that
// Close would leave something behind: what was not committed would be lost, and what the log holds is for the next mount to recover.
func (v *FS) Settle() (err error) {
	defer v.NoteTo(&err)
	if v.readOnly.Load() {
		return nil
	}
	return errors.Join(v.settleAllAccess(), v.Journal.Checkpoint())
}
