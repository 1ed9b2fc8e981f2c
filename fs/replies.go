package fs

import (
	"runtime"
	"sync"
	"unsafe"
)

// On /dev/fuse go-fuse has a buffer for the reply to each READ and READDIR, and keeps it after the reply, in a sync.Pool for each count of
// pages. There are 256 of them, so requests of many sizes keep more and more memory: the more there is, the rarer is the garbage
// collection that empties such pools. go-fuse has no switch for that. replies counts the buffers, which it knows by their addresses, and
// has the pools emptied when they may hold too much.
//
// They are emptied under the lock, so that other large requests wait: what they would allocate meanwhile had no bound.
type replies struct {
	mu   sync.Mutex
	seen map[uintptr]struct{} // protected by mu: buffers since the pools were emptied last
	size int                  // protected by mu: bytes of them
}

const (
	maxReplies   = 24 << 20 // bytes in the pools
	smallReplies = 16 << 10 // bytes of buffers that are not counted: all sizes together are small
)

// note counts a buffer of go-fuse's.
func (p *replies) note(buf []byte) {
	if cap(buf) <= smallReplies {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	if _, ok := p.seen[at]; ok {
		return
	}
	if p.size += cap(buf); p.size > maxReplies {
		clear(p.seen)
		p.size = cap(buf)
		runtime.GC() // what is in a sync.Pool and not used lives for two collections
		runtime.GC()
	}
	if p.seen == nil {
		p.seen = make(map[uintptr]struct{})
	}
	p.seen[at] = struct{}{}
}

// noteReply counts the buffer for a reply, unless it belongs to a ring.
func (r *rawFS) noteReply(buf []byte) {
	if r.srv.rings.used() == nil {
		r.replies.note(buf)
	}
}
