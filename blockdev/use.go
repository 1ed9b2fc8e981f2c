package blockdev

import "errors"

// Use says what a buffer is for. A use can have memory reserved that the others cannot take (Bounded.Reserve), and an Alloc waits only
// for buffers of its own use. So that no wait is circular, the holder of a buffer may wait for one of a use further down this list,
// never for one of the same use or further up:
//
//	ForData     file data. The caller holds no lock, no journal handle and no other such buffer: it allocates all it needs at once
//	ForBlock    a single block, for one transfer. The caller may hold locks and a handle
//	ForCache    metadata in memory. jbd2 evicts blocks when it needs room
//	ForJournal  a transaction's copies. jbd2 waits for its checkpoints
//	ForPayload  where a mount's requests bring and fetch file data. Held as long as the mount, and never waited for
type Use uint8

const (
	ForData Use = iota
	ForBlock
	ForCache
	ForJournal
	ForPayload
	NumUses // how many there are

	// NoWait, added to a use, makes Alloc return ErrNoMemory instead of waiting.
	NoWait Use = 0x80
)

var useNames = [NumUses]string{"data", "single blocks", "the metadata cache", "the journal", "payloads"}

func (u Use) String() string {
	if u &^= NoWait; u < NumUses {
		return useNames[u]
	}
	return "an unknown use"
}

// ErrNoMemory is the error of an Alloc that found no pinned memory: at once with NoWait, else after a long time without a release.
var ErrNoMemory = errors.New("out of pinned memory")

// Bounded is implemented by a Device whose pinned memory has a limit, Info.Pinned.
type Bounded interface {
	// Reserve keeps n bytes, rounded up to 2 MiB, of the limit for a use. It replaces the use's earlier reservation; 0 ends it. It
	// pins nothing. The error is ErrNoMemory if the other reservations leave less.
	Reserve(use Use, n int64) error
	// Room is the limit less what is reserved for the other uses, in bytes.
	Room(use Use) int64
	// OnShort sets the function that is called when an Alloc has to wait while the cache has more than is reserved for it, or while
	// the system refuses memory. f releases the buffers that the cache can spare, and must not wait. nil ends it.
	OnShort(f func())
}
