package fs

import (
	"time"

	"github.com/lanefs/lanefs/blockdev/latency"
)

// Stats counts the kernel's requests since the mount. Bytes are those that were read and stored.
type Stats struct {
	Reads, ReadBytes     int64
	Writes, WrittenBytes int64
	Nodes                int               // inodes that the kernel knows now
	Times                []latency.Summary // of each kind of request, in the daemon
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{
		Reads:        s.count.reads.Load(),
		ReadBytes:    s.count.readBytes.Load(),
		Writes:       s.count.writes.Load(),
		WrittenBytes: s.count.writtenBytes.Load(),
		Nodes:        s.nodes.len(),
		Times:        s.times.Summaries(),
	}
}

// WatchSlow gives a channel that gets a value when a request that began after the call, while a Go trace was recorded, has taken least or
// longer, until stop is called.
func (s *Server) WatchSlow(least time.Duration) (met <-chan struct{}, stop func()) {
	return s.times.Watch(least)
}
