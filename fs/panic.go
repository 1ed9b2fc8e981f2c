package fs

import (
	"runtime/debug"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// panicked ends the process after a request that has panicked. go-fuse would answer it with EIO and go on: with locks that the request held, so that all
// others wait for ever and nobody is told why, and with a volume in a state that nobody knows. After the end of the process programs get ECONNABORTED, then ENOTCONN, and
// the next mount replays the journal.
func (s *Server) panicked(v any) fuse.Status {
	s.opt.Log.Error("a request panicked: the daemon ends", "panic", v, "stack", string(debug.Stack()))
	go func() { panic(v) }() // nobody recovers that; the runtime prints it
	select {}
}
