package uring

import "structs"

// What this package needs of [io_uring]. The sizes and offsets are held by TestLayout.

// Flags of io_uring_setup(2).
const (
	setupCQSize       = 1 << 3  // cqEntries is given
	setupSubmitAll    = 1 << 7  // a refused entry does not end a submission
	setupCoopTaskrun  = 1 << 8  // the kernel's work for completions interrupts no thread in user space
	setupSQE128       = 1 << 10 // submission entries have 128 bytes; FUSE needs them
	setupSingleIssuer = 1 << 12 // one thread submits
	setupNoSQArray    = 1 << 16 // the submission queue is the entries themselves (Linux 6.6)
)

const (
	featSingleMmap = 1 << 0 // one mapping holds both rings
	featNoDrop     = 1 << 1

	enterGetEvents = 1 << 0

	opNop      = 0
	opURingCmd = 46

	offSQRing = 0
	offSQEs   = 0x10000000
)

// params is struct io_uring_params.
type params struct {
	_ structs.HostLayout

	sqEntries, cqEntries uint32
	flags                uint32
	sqThreadCPU          uint32
	sqThreadIdle         uint32
	features             uint32
	wqFD                 uint32
	_                    [3]uint32
	sq                   sqOffsets
	cq                   cqOffsets
}

// sqOffsets is struct io_sqring_offsets: where the submission ring's words are.
type sqOffsets struct {
	_ structs.HostLayout

	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

// cqOffsets is struct io_cqring_offsets.
type cqOffsets struct {
	_ structs.HostLayout

	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

// sqe is struct io_uring_sqe with the room for a command that IORING_SETUP_SQE128 gives.
type sqe struct {
	_ structs.HostLayout

	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	cmdOp    uint32 // or the lower half of off
	_        uint32
	addr     uint64
	len      uint32
	cmdFlags uint32
	userData uint64
	_        [2]uint32
	cmd      [80]byte
}

// cqe is struct io_uring_cqe.
type cqe struct {
	_ structs.HostLayout

	userData uint64
	res      int32 // negative: an errno
	flags    uint32
}

// What it needs of [fuse].

// Operations of IORING_OP_URING_CMD on /dev/fuse (enum fuse_uring_cmd).
const (
	cmdRegister       = 1
	cmdCommitAndFetch = 2
)

// cmdReq is struct fuse_uring_cmd_req, which stands in sqe.cmd.
type cmdReq struct {
	_ structs.HostLayout

	flags    uint64
	commitID uint64
	qid      uint16
	_        [6]byte
}

// headerSize is FUSE_URING_IN_OUT_HEADER_SZ and FUSE_URING_OP_IN_OUT_SZ.
const headerSize = 128

// header is struct fuse_uring_req_header: what the kernel and the daemon tell one another about a request, besides its payload.
type header struct {
	_ structs.HostLayout

	inOut [headerSize]byte // a fuse_in_header; of an answer a fuse_out_header
	opIn  [headerSize]byte // the operation's own header, of a request only
	ent   entInOut
}

// entInOut is struct fuse_uring_ent_in_out.
type entInOut struct {
	_ structs.HostLayout

	flags     uint64
	commitID  uint64
	payloadSz uint32
	_         uint32
	_         uint64
}

// inHeader is struct fuse_in_header.
type inHeader struct {
	_ structs.HostLayout

	len           uint32
	opcode        uint32
	unique        uint64
	nodeID        uint64
	uid, gid, pid uint32
	totalExtlen   uint16
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
	inHeaderSize  = 40
	outHeaderSize = 16
)
