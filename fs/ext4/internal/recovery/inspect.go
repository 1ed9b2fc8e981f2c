package recovery

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Inspection is what can be said of a volume without changing it, whether or not it can be mounted.
type Inspection struct {
	Label      string           `json:"label"`
	UUID       string           `json:"uuid"`
	BlockSize  int              `json:"block_size"`
	Blocks     uint64           `json:"blocks"`
	Free       uint64           `json:"free_blocks"`
	Reserved   uint64           `json:"reserved_blocks"` // of the free ones, for the superuser
	Inodes     uint64           `json:"inodes"`
	FreeInodes uint64           `json:"free_inodes"`
	Features   []volume.Feature `json:"features"`
	Journal    JournalState     `json:"journal"`
	Errors     ErrorsRecorded   `json:"errors"`
	Mount      volume.Support   `json:"mount"`   // what Open does with it
	Reasons    []string         `json:"reasons"` // why it is not mounted read-write
	Damaged    bool             `json:"damaged"` // e2fsck is to see it before it is written
}

// JournalState is the journal as it lies on the volume.
type JournalState struct {
	State        string `json:"state"` // none, external, clean, needs recovery, in use
	Blocks       uint32 `json:"blocks"`
	FastBlocks   uint32 `json:"fast_commit_blocks"`
	Transactions int    `json:"transactions"` // committed, not yet written home
	Logged       int    `json:"logged_blocks"`
	Errno        int32  `json:"errno"` // left by the mount that aborted it
}

// ErrorsRecorded is what the superblock says of errors that were met.
type ErrorsRecorded struct {
	Marked bool      `json:"marked"` // e2fsck is to look at the volume
	Count  uint32    `json:"count"`
	Last   time.Time `json:"last,omitzero"`
}

// InspectRefused is what the superblock says of a volume that Open refuses, and why.
func InspectRefused(sb *disk.Superblock, why error) *Inspection {
	in := inspect(sb)
	in.Mount, in.Reasons = volume.Refused, []string{why.Error()}
	var bad *disk.CorruptError
	in.Damaged = errors.As(why, &bad) || errors.Is(why, volume.ErrCorrupt)
	return in
}

// sayable is t, or the last time for which RFC 3339 has a year: the superblock's times go up to the year 36812.
func sayable(t time.Time) time.Time {
	if t.Year() > 9999 {
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return t
}

// inspect is what the superblock says.
func inspect(sb *disk.Superblock) *Inspection {
	in := &Inspection{
		Label: sb.Label(), UUID: uuidText(sb.UUID),
		BlockSize: sb.BlockSize(), Blocks: sb.BlocksCount, Free: sb.FreeBlocksCount, Reserved: sb.RBlocksCount,
		Inodes: uint64(sb.InodesCount), FreeInodes: uint64(sb.FreeInodesCount),
		Features: volume.Features(sb.FeatureCompat, sb.FeatureIncompat, sb.FeatureROCompat),
		Errors:   ErrorsRecorded{Marked: sb.State&disk.StateError != 0, Count: sb.ErrorCount},
		Mount:    volume.ReadWrite, Reasons: []string{},
	}
	if sb.LastErrorTime != 0 {
		in.Errors.Last = sayable(time.Unix(int64(sb.LastErrorTime), 0))
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
func (j *Journal) Inspect() *Inspection {
	v := j.v
	free := v.Alloc.FreeBlocks()
	var in *Inspection
	v.ViewSuper(func(sb *disk.Superblock) { in = inspect(sb) })
	in.Free, in.FreeInodes = free, v.Alloc.FreeInodes()
	if in.Journal.State != "none" {
		in.Journal = j.found
	}
	if v.Logged {
		in.Journal.State = "in use"
	}
	if bad := volume.Unwritable(v.Super); bad != 0 {
		in.Reasons = append(in.Reasons, fmt.Sprintf("the volume has the feature %v, which LaneFS cannot write: mount it with the kernel's ext4 to write", bad))
	}
	if v.FsckReason != "" {
		in.Reasons = append(in.Reasons, "the volume "+v.FsckReason+": run e2fsck on it")
	}
	in.Reasons = append(in.Reasons, v.Reasons()...)
	in.Damaged = v.FsckReason != "" || v.MetError()
	if len(in.Reasons) > 0 {
		in.Mount = volume.ReadOnly
	}
	return in
}

// note keeps what is found in the journal for Inspect. r is nil where the log was not looked at.
func (j *Journal) note(r *jbd2.Recovery) {
	i := j.log.Info()
	j.found = JournalState{State: "clean", Blocks: i.Blocks, FastBlocks: i.FastBlocks, Errno: i.Errno}
	if i.Start != 0 {
		j.found.State = "needs recovery"
	}
	if r != nil {
		j.found.Transactions, j.found.Logged = r.Transactions, r.Blocks()
	}
}

// uuidText is a UUID as tools write it.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
