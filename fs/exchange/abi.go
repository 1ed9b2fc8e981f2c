package exchange

import "structs"

// What this package needs of [fuse]. The sizes are held by TestLayout.

// InHeader is struct fuse_in_header.
type InHeader struct {
	_ structs.HostLayout

	Len           uint32
	Opcode        uint32
	Unique        uint64
	NodeID        uint64
	UID, GID, PID uint32
	TotalExtlen   uint16
	_             uint16
}

// outHeader is struct fuse_out_header.
type outHeader struct {
	_ structs.HostLayout

	len    uint32
	error  int32
	unique uint64
}

const (
	// InHeaderSize is that of struct fuse_in_header.
	InHeaderSize = 40
	// OutHeaderSize is that of struct fuse_out_header.
	OutHeaderSize = 16
	// MinPayload is FUSE_MIN_READ_BUFFER.
	MinPayload = 8192
)

// Operations (enum fuse_opcode).
const (
	opForget      = 2
	opRead        = 15
	opWrite       = 16
	opRelease     = 18
	opReleaseDir  = 29
	opInterrupt   = 36
	opIoctl       = 39 // the one operation that may read and write payload at the same time
	opNotifyReply = 41
	opBatchForget = 42
)
