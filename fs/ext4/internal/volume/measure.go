package volume

import "github.com/lanefs/lanefs/blockdev/latency"

// The kinds of FS.Times.
const (
	TimeChange = iota // an operation that changes metadata, with its wait for locks and room in the journal
	TimeSync          // an fsync, with its wait for the commit
	TimeCommit        // a commit of the journal
)

// NewTimes makes FS.Times.
func NewTimes() *latency.Layer { return latency.NewLayer("ext4", "change", "sync", "commit") }
