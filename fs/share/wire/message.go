package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Version of the protocol. A client sends the lowest and the highest version that it supports; the reply has the version to use.
const Version = 1

// Magic opens a Hello.
var Magic = [8]byte{'L', 'A', 'N', 'E', 'F', 'S', 'V', 'R'}

// ShareAttr is an extended attribute that every file of a mount with a share has and that no volume stores. Its value is the path of the
// share's socket. No other file system lets a user set a name in "system.", so it is also how a program recognises a LaneFS mount.
const ShareAttr = "system.lanefs.share"

// Limits of a message. HeaderSize and MaxMessage are bytes, MaxRights is a number of descriptors. Larger messages are refused.
const (
	HeaderSize = 16
	MaxMessage = 1024
	MaxRights  = 4
)

// Type is the type of a message.
type Type uint16

const (
	THello    Type = 1 + iota // the first message, once: version and facts
	TMap                      // map a range of a file as device memory
	TRelease                  // close a handle
	TCommit                   // write device memory to a file, durably
	TPin                      // pin a file, or unpin it
	TRegister                 // register memory of the program, for rings
	TOpen                     // open a file, for rings
	TRing                     // make a submission and a completion ring
	TMoved                    // how the connection's bytes went
	TDevice                   // choose one of the mount's GPUs
	types
)

// Reply is set in the type of a reply.
const Reply Type = 0x8000

// Header opens every message.
type Header struct {
	Type   Type
	_      uint16
	Length uint32 // of the whole message
	Tag    uint32
	Status int32 // of a reply: 0, or an errno; then the body is the error text
}

// Hello is the first request. Its reply carries two rights: the notice board, and the Event that signals changes of it.
type Hello struct {
	Magic       [8]byte
	Least, Most uint16
	_           uint32
}

// HelloReply has the facts of the daemon. Granule and PoolSize are bytes.
type HelloReply struct {
	Version  uint16
	Runtime  Runtime
	Kind     uint32 // of exported memory, as gpu.ExportKind numbers it
	Granule  uint64
	PoolSize uint64
	Slots    uint32 // words of the notice board
	Writable uint16 // 1: readers could write to shared memory, which is therefore shared by programs of one user only
	More     uint16 // GPUs that the mount has beside the one of this reply: see Device
	Device   [64]byte
	Name     [64]byte
}

// Device chooses the GPU whose memory the connection gets from now on. It comes before anything else after the Hello, or is refused.
type Device struct {
	Index  uint32 // of the GPU in the order of the mount's option, from 0; NoIndex: by Device
	_      uint32
	Device [64]byte // its PCI address
}

// NoIndex is no index.
const NoIndex = ^uint32(0)

// DeviceReply has the facts of the GPU that was chosen, as HelloReply.
type DeviceReply struct {
	Index    uint32
	Kind     uint32
	Granule  uint64
	PoolSize uint64
	Device   [64]byte
	Name     [64]byte
}

// Runtime is the kind of GPU runtime that allocates the memory.
type Runtime uint16

const (
	RuntimeHost Runtime = 1 + iota
	RuntimeCUDA
	RuntimeHIP
)

// Map maps a range of a file. The request carries the file, the reply the memory.
type Map struct {
	Off, Len uint64 // Len 0: to the end of the file
	Flags    MapFlags
	_        uint32
}

// MapFlags are the flags of Map.
type MapFlags uint32

const (
	MapPrivate MapFlags = 1 << iota // memory of its own, to write to; the file must be open for writing
	MapEmpty                        // with MapPrivate: zeroes, not the file's bytes; Len may go past the file's end
	mapFlags   = MapPrivate | MapEmpty
)

// MapReply describes the memory.
type MapReply struct {
	Handle     uint32
	Kind       uint32
	MemOff     uint64 // of the range in the memory
	Len        uint64
	MemSize    uint64 // of the memory behind the descriptor
	Generation uint64
	FileSize   uint64
	FDOff      uint64 // of the memory in the object behind the descriptor
}

// Release closes a handle. The reply is empty.
type Release struct {
	Handle uint32
	Flags  ReleaseFlags
}

// ReleaseFlags are the flags of Release. Daemons of before December 2026 do not look at them: they answer once all has ended.
type ReleaseFlags uint32

const (
	ReleaseBrief ReleaseFlags = 1 << iota // do not wait for what uses the handle: EINPROGRESS if something does, and the handle is released with its end
	ReleaseAsk                            // release nothing: EINPROGRESS while a release of the handle is under way
)

// Commit writes Len bytes of memory to a file. It carries the file.
type Commit struct {
	Handle  uint32
	_       uint32
	MemOff  uint64
	FileOff uint64
	Len     uint64
}

// CommitReply has the number of bytes written.
type CommitReply struct {
	Written uint64
}

// Pin pins or unpins a file. It carries the file.
type Pin struct {
	On    uint32 // 1: load the file and keep it; 0: no longer
	Owner uint32 // the user whose programs share the memory, if HelloReply.Writable; NoOwner: the client's user
}

// NoOwner is no user.
const NoOwner = ^uint32(0)

// PinReply has the size of the pinned range.
type PinReply struct {
	Bytes      uint64
	Generation uint64
}

// Register registers memory of the program. It carries the memory.
type Register struct {
	Kind  uint32
	_     uint32
	FDOff uint64
	Size  uint64
}

// RegisterReply has the handle of the memory.
type RegisterReply struct {
	Handle uint32
	_      uint32
}

// Open opens a file for rings. It carries the file.
type Open struct {
	_ uint64
}

// OpenReply has the handle and the size of the file.
type OpenReply struct {
	Handle uint32
	Access uint32 // 1: may be read; 2: may be written
	Size   uint64
}

// Moved asks how the bytes of the connection went.
type Moved struct {
	_ uint64
}

// MovedReply counts the requests of the connection's rings, by how their bytes went, as share.Moved does.
type MovedReply struct {
	Device, Stage, Copied MovedCount
	Flags                 MovedFlags
	_                     uint32
	Why                   [64]byte // with MovedUnreached, the beginning of the reason
}

// MovedCount counts requests that succeeded, and their bytes.
type MovedCount struct{ Requests, Bytes uint64 }

// MovedFlags are flags of a MovedReply.
type MovedFlags uint32

// MovedUnreached says that the drive does not reach device memory: bytes pass through a stage of the daemon's, and a copy engine.
const MovedUnreached MovedFlags = 1

// Ring makes rings. The reply carries three rights: their memory, the Doorbell that the client rings after it has submitted, and the Event
// that signals completions.
type Ring struct {
	Entries uint32 // submissions; a power of two up to MaxEntries
	_       uint32
}

// RingReply has the handle and the sizes of the rings. Size is bytes of memory.
type RingReply struct {
	Handle      uint32
	Entries     uint32
	Completions uint32
	_           uint32
	Size        uint64
}

// Error is an error reply of the daemon.
type Error struct {
	Errno syscall.Errno
	Text  string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return e.Text
}

func (e *Error) Unwrap() error { return e.Errno }

// ErrMalformed says that bytes are not a valid message.
var ErrMalformed = errors.New("malformed message")

// Encode returns a message of h and body. It sets h.Length. body is a pointer to one of the structs above, a string, or nil.
func Encode(h Header, body any) []byte {
	b := make([]byte, 0, 256)
	b, _ = binary.Append(b, binary.LittleEndian, &h)
	switch v := body.(type) {
	case nil:
	case string:
		b = append(b, v[:min(len(v), MaxMessage-HeaderSize)]...)
	default:
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, v); err != nil {
			panic(fmt.Sprintf("wire: %T: %v", v, err)) // not of fixed size: a bug
		}
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	return b
}

// Decode splits a packet into header and body.
func Decode(packet []byte) (h Header, body []byte, err error) {
	if len(packet) < HeaderSize || len(packet) > MaxMessage {
		return h, nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(packet))
	}
	if _, err := binary.Decode(packet, binary.LittleEndian, &h); err != nil {
		return h, nil, err
	}
	if int(h.Length) != len(packet) {
		return h, nil, fmt.Errorf("%w: a length of %d in %d bytes", ErrMalformed, h.Length, len(packet))
	}
	return h, packet[HeaderSize:], nil
}

// Body decodes a body, whose size must be exactly that of v.
func Body(b []byte, v any) error {
	if want := binary.Size(v); len(b) != want {
		return fmt.Errorf("%w: a body of %d bytes, want %d", ErrMalformed, len(b), want)
	}
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return err
}

// Text returns s as a fixed field: 63 bytes of it at most, ended by a zero byte.
func Text(s string) (t [64]byte) {
	copy(t[:63], s)
	return t
}

// String is the inverse of Text.
func String(t [64]byte) string {
	b, _, _ := bytes.Cut(t[:], []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}

// Failure returns the status and the body of an error reply.
func Failure(err error, errno syscall.Errno) (int32, string) {
	if errno == 0 {
		errno = syscall.EIO
	}
	return int32(errno), strings.Join(strings.Split(strings.TrimSpace(err.Error()), "\n"), "; ")
}

// Valid says whether the flags mean something.
func (f MapFlags) Valid() bool { return f&^mapFlags == 0 && (f&MapEmpty == 0 || f&MapPrivate != 0) }
