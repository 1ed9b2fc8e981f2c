package ext4

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Inspection is what can be said of a volume without changing it, whether or not it can be mounted.
type Inspection struct {
	Label      string         `json:"label"`
	UUID       string         `json:"uuid"`
	BlockSize  int            `json:"block_size"`
	Blocks     uint64         `json:"blocks"`
	Free       uint64         `json:"free_blocks"`
	Reserved   uint64         `json:"reserved_blocks"` // of the free ones, for the superuser
	Inodes     uint64         `json:"inodes"`
	FreeInodes uint64         `json:"free_inodes"`
	Features   []Feature      `json:"features"`
	Journal    JournalState   `json:"journal"`
	Errors     ErrorsRecorded `json:"errors"`
	Mount      Support        `json:"mount"`   // what Open does with it
	Reasons    []string       `json:"reasons"` // why it is not mounted read-write
}

// JournalState is the journal as it lies on the volume.
type JournalState struct {
	State        string `json:"state"` // none, external, clean, needs recovery, in use
	Blocks       uint32 `json:"blocks"`
	FastBlocks   uint32 `json:"fast_commit_blocks"`
	Transactions int    `json:"transactions"` // committed, not yet written home
	Logged       int    `json:"logged_blocks"`
	Errno        int32  `json:"errno"` // left by whoever aborted it
}

// ErrorsRecorded is what the superblock says of errors that were met.
type ErrorsRecorded struct {
	Marked bool      `json:"marked"` // e2fsck is to look at the volume
	Count  uint32    `json:"count"`
	Last   time.Time `json:"last,omitzero"`
}

// Inspect looks at the volume on dev and writes nothing. A volume that Open would refuse is described by its superblock
// and comes without an FS; any other comes with one that is mounted for reading, which the caller closes. The error is
// for devices that hold no ext4 volume.
func Inspect(dev blockdev.Device) (*Inspection, *FS, error) {
	sb, err := readSuperblock(dev)
	if sb == nil {
		return nil, nil, err
	}
	if err == nil {
		err = refusal(sb)
	}
	var v *FS
	if err == nil {
		v, err = Open(dev, Options{ReadOnly: true, Logf: func(string, ...any) {}})
	}
	if err != nil {
		in := inspect(sb)
		in.Mount, in.Reasons = Refused, []string{err.Error()}
		return in, nil, nil
	}
	return v.Inspect(), v, nil
}

// inspect is what the superblock says.
func inspect(sb *disk.Superblock) *Inspection {
	in := &Inspection{
		Label: sb.Label(), UUID: uuidText(sb.UUID),
		BlockSize: sb.BlockSize(), Blocks: sb.BlocksCount, Free: sb.FreeBlocksCount, Reserved: sb.RBlocksCount,
		Inodes: uint64(sb.InodesCount), FreeInodes: uint64(sb.FreeInodesCount),
		Features: features(sb.FeatureCompat, sb.FeatureIncompat, sb.FeatureROCompat),
		Errors:   ErrorsRecorded{Marked: sb.State&disk.StateError != 0, Count: sb.ErrorCount},
		Mount:    ReadWrite, Reasons: []string{},
	}
	if sb.LastErrorTime != 0 {
		in.Errors.Last = time.Unix(int64(sb.LastErrorTime), 0)
	}
	switch {
	case !sb.FeatureCompat.Has(disk.CompatHasJournal):
		in.Journal.State = "none"
	case sb.JournalInum == 0:
		in.Journal.State = "external"
	case sb.FeatureIncompat.Has(disk.IncompatRecover):
		in.Journal.State = "needs recovery"
	default:
		in.Journal.State = "clean"
	}
	return in
}

// Inspect describes the mounted volume as it is now, its journal as this mount found it.
func (v *FS) Inspect() *Inspection {
	free := v.alloc.FreeBlocks()
	v.sbMu.Lock()
	in := inspect(v.sb)
	v.sbMu.Unlock()
	in.Free, in.FreeInodes = free, v.alloc.FreeInodes()
	if in.Journal.State != "none" {
		in.Journal = v.found
	}
	if v.logged {
		in.Journal.State = "in use"
	}
	if bad := unwritable(v.sb); bad != 0 {
		in.Reasons = append(in.Reasons, fmt.Sprintf("the volume has the feature %v, which LaneFS cannot write", bad))
	}
	if v.doubt != "" {
		in.Reasons = append(in.Reasons, "the volume "+v.doubt+": run e2fsck on it")
	}
	if v.errored.Load() {
		in.Reasons = append(in.Reasons, "this mount has met an error: run e2fsck on the volume")
	}
	if len(in.Reasons) > 0 {
		in.Mount = ReadOnly
	}
	return in
}

// noteJournal keeps what is found in the journal for Inspect. r is nil where the log was not looked at.
func (v *FS) noteJournal(i jbd2.LogInfo, r *jbd2.Recovery) {
	v.found = JournalState{State: "clean", Blocks: i.Blocks, FastBlocks: i.FastBlocks, Errno: i.Errno}
	if i.Start != 0 {
		v.found.State = "needs recovery"
	}
	if r != nil {
		v.found.Transactions, v.found.Logged = r.Transactions, r.Blocks()
	}
}

// FreeExtents calls f with the length in blocks of every run of free blocks, across groups.
func (v *FS) FreeExtents(f func(n uint64)) error {
	var start, end uint64
	err := v.alloc.FreeRuns(func(b jbd2.Block, n uint32) {
		if uint64(b) != end && end > start {
			f(end - start)
		}
		if uint64(b) != end {
			start = uint64(b)
		}
		end = uint64(b) + uint64(n)
	})
	if end > start {
		f(end - start)
	}
	return err
}

// FileExtents calls f with every file and directory that has blocks, and in how many pieces they lie. Between two of
// them it calls progress with how many of all inodes in use are done, and ends when that reports false. What cannot be
// read is passed to f as an error.
func (v *FS) FileExtents(f func(ino uint32, blocks uint64, pieces int, err error), progress func(done, total uint64) bool) error {
	total := uint64(v.sb.InodesCount) - v.alloc.FreeInodes()
	done := uint64(0)
	return v.alloc.InodesInUse(func(ino uint32) bool {
		if ino == disk.InoRoot || ino >= v.sb.FirstIno && ino != v.orphanFile() {
			blocks, pieces, err := v.countPieces(ino)
			if pieces > 0 || err != nil {
				f(ino, blocks, pieces, err)
			}
		}
		done++
		return progress(done, max(total, done))
	})
}

// orphanFile is the inode of the orphan file, 0 if there is none.
func (v *FS) orphanFile() uint32 {
	if !v.sb.FeatureCompat.Has(disk.CompatOrphanFile) {
		return 0
	}
	return v.sb.OrphanFileInum
}

// countPieces counts the runs of blocks that lie apart on the volume. Errors are not noted: to look is not to stumble.
func (v *FS) countPieces(ino uint32) (blocks uint64, pieces int, err error) {
	i, err := v.get(ino)
	if err != nil {
		return 0, 0, err
	}
	defer i.Put()
	i.mu.RLock()
	defer i.mu.RUnlock()
	if !i.hasBlocks() || i.d.LinksCount == 0 {
		return 0, 0, nil
	}
	next := jbd2.Block(0)
	err = i.tree(nil).Walk(nil, func(x extent.Extent) error {
		if x.Pblk != next {
			pieces++
		}
		next = x.Pblk + jbd2.Block(x.Len)
		blocks += uint64(x.Len)
		return nil
	})
	return blocks, pieces, err
}

// uuidText is a UUID as tools write it.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
