package blockdev

import "errors"

// Use says what a buffer is for. Each use has memory of its own that the others cannot take (Bounded.Reserve), and what waits for
// memory waits for buffers of its own use only. So who holds a buffer may wait for one of a use further down this list, never
// for one of the same use or further up:
//
//	ForData     no lock, no handle and no other such buffer is held by who waits: he asks for all he needs at once
//	ForBlock    locks and handles may be held; the buffer is given back after one transfer
//	ForCache    metadata in memory; jbd2 makes room by itself
//	ForJournal  a transaction's copies; jbd2 waits for its checkpoints
type Use uint8

const (
	ForData Use = iota
	ForBlock
	ForCache
	ForJournal
	NumUses

	// NoWait, added to a use, makes a lack of memory an error at once.
	NoWait Use = 0x80
)

var useNames = [NumUses]string{"data", "single blocks", "the metadata cache", "the journal"}

func (u Use) String() string {
	if u &^= NoWait; u < NumUses {
		return useNames[u]
	}
	return "an unknown use"
}

// ErrNoMemory says that there was no pinned memory: at once with NoWait, else after a long time in which none came back.
var ErrNoMemory = errors.New("out of pinned memory")

// Bounded is a Device whose pinned memory has a limit, Info.Pinned. Namespace is one.
type Bounded interface {
	// Reserve keeps n bytes, rounded up to 2 MiB, for a use: the others leave so much of the limit to it. It replaces what was
	// reserved for the use before; 0 ends it. Nothing is pinned by it. The error says what does not fit.
	Reserve(use Use, n int64) error
	// Room is how many bytes a use can have when the others have what is reserved for them.
	Room(use Use) int64
	// OnShort has f called when somebody has to wait for memory and the cache has more than is reserved for it, or the system
	// refuses memory: f gives back what the cache can spare, and does not wait. A later call replaces f; nil ends it.
	OnShort(f func())
}
