package iouring

import "structs"

// Flags of io_uring_setup(2).
const (
	SetupCoopTaskrun  = 1 << 8  // the kernel's work for completions interrupts no thread in user space
	SetupTaskrunFlag  = 1 << 9  // TaskrunWaits says that there is such work
	SetupSingleIssuer = 1 << 12 // one thread submits

	setupCQSize    = 1 << 3  // cqEntries is given
	setupSubmitAll = 1 << 7  // a refused entry does not end a submission (Linux 5.18)
	setupSQE128    = 1 << 10 // submission entries have 128 bytes
	setupNoSQArray = 1 << 16 // the submission queue is the entries themselves (Linux 6.6)
)

const (
	featSingleMmap = 1 << 0 // one mapping holds both rings
	featNoDrop     = 1 << 1
	featExtArg     = 1 << 8 // a wait may have a limit (Linux 5.11)

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	sqTaskrun = 1 << 2 // a flag of the submission ring

	offSQRing = 0
	offSQEs   = 0x10000000
)

// Operations.
const (
	OpNop         = 0
	OpReadv       = 1
	OpWritev      = 2
	OpReadFixed   = 4
	OpWriteFixed  = 5
	OpRead        = 22
	OpWrite       = 23
	OpURingCmd    = 46
	OpReadvFixed  = 60 // Linux 6.15
	OpWritevFixed = 61
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

// SQE is struct io_uring_sqe. A wide ring has 64 bytes more behind it: a command's area begins at Addr3.
type SQE struct {
	_ structs.HostLayout

	Opcode      uint8
	Flags       uint8
	IOPrio      uint16
	FD          int32
	Off         uint64 // of a command the lower half is its number
	Addr        uint64
	Len         uint32
	OpFlags     uint32 // of a read or write: RWF_…
	UserData    uint64
	BufIndex    uint16
	Personality uint16
	FileIndex   int32
	Addr3       uint64
	_           uint64
}

// WideSQE is an SQE with the room for a command that IORING_SETUP_SQE128 gives.
type WideSQE struct {
	_ structs.HostLayout

	Opcode   uint8
	Flags    uint8
	IOPrio   uint16
	FD       int32
	CmdOp    uint32
	_        uint32
	Addr     uint64
	Len      uint32
	CmdFlags uint32
	UserData uint64
	_        [2]uint32
	Cmd      [80]byte
}

// CQE is struct io_uring_cqe.
type CQE struct {
	_ structs.HostLayout

	UserData uint64
	Res      int32 // negative: an errno
	Flags    uint32
}

// eventsArg is struct io_uring_getevents_arg.
type eventsArg struct {
	_ structs.HostLayout

	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}
