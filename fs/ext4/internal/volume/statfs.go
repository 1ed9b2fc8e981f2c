package volume

import "github.com/lanefs/lanefs/blockdev/latency"

// Statfs is what statfs reports. Sizes are in blocks of BlockSize bytes.
type Statfs struct {
	BlockSize                       int
	Blocks, BlocksFree, BlocksAvail uint64
	Overhead                        uint64 // blocks of the format itself, which Blocks does not count
	Inodes, InodesFree              uint64
	MaxName                         int
	UUID                            [16]byte
	ReservedUID, ReservedGID        uint32 // may UseReserved as root may; 0 for none
}

// Stats counts the bytes that the volume has moved through its device since it was mounted.
type Stats struct {
	DataRead, DataWritten         int64 // file contents, whole blocks
	CopiedRead, CopiedWritten     int64 // of what was read and written, by the CPU
	MetadataRead, MetadataWritten int64 // the superblock included
	JournalWritten                int64
	Commits                       int64
	Cached                        int64             // metadata in memory now
	Times                         []latency.Summary // of changes, syncs and commits
}

// Statfs reports sizes and what is free.
func (v *FS) Statfs() Statfs {
	free := v.Alloc.FreeBlocks()
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	return Statfs{
		BlockSize:   v.BlockSize,
		Blocks:      v.Super.BlocksCount - v.Alloc.Overhead(),
		Overhead:    v.Alloc.Overhead(),
		BlocksFree:  free,
		BlocksAvail: free - min(free, v.Alloc.Kept()),
		Inodes:      uint64(v.Super.InodesCount),
		InodesFree:  v.Alloc.FreeInodes(),
		MaxName:     255,
		UUID:        v.Super.UUID,
		ReservedUID: v.Super.DefResuid,
		ReservedGID: v.Super.DefResgid,
	}
}

// Stats is a snapshot of the counters.
func (v *FS) Stats() Stats {
	c := v.Cache.Stats()
	return Stats{
		DataRead: v.Counters.DataRead.Load(), DataWritten: v.Counters.DataWritten.Load(),
		CopiedRead: v.Counters.CopiedRead.Load(), CopiedWritten: v.Counters.CopiedWritten.Load(),
		MetadataRead: c.MetadataRead + v.Counters.superRead.Load(), MetadataWritten: c.MetadataWritten + v.Counters.superWritten.Load(),
		JournalWritten: c.JournalWritten, Commits: c.Commits, Cached: c.Resident,
		Times: v.Times.Summaries(),
	}
}
