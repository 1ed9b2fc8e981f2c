package uring

import "structs"

// What this package needs of [fuse]. The sizes and offsets are held by TestLayout.

// Operations of IORING_OP_URING_CMD on /dev/fuse (enum fuse_uring_cmd).
const (
	cmdRegister       = 1
	cmdCommitAndFetch = 2
)

// cmdReq is struct fuse_uring_cmd_req, which stands in an entry's Cmd.
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
