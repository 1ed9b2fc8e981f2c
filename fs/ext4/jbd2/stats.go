package jbd2

import "sync/atomic"

// Stats counts what a cache and its journal moved since they were opened.
type Stats struct {
	MetadataRead    int64 // bytes read into buffers
	MetadataWritten int64 // bytes written home, in place or by checkpoints
	JournalWritten  int64 // bytes written to the log, its superblock included
	Commits         int64 // transactions made durable
	Checkpoints     int64 // times the log's tail moved
	Overruns        int64 // blocks that handles dirtied beyond their credits: an estimate of the caller's is too low
	FlushesShared   int64 // fsyncs that needed a flush, and had one together with another
	Resident        int64 // bytes of blocks in the cache
	Staged          int64 // bytes of staging memory in use
}

type counters struct {
	read, written, log, commits, checkpoints, overruns, flushesShared atomic.Int64
}
