package softctl

import "encoding/binary"

const (
	sqeSize = 64
	cqeSize = 16
	sqes    = 6 // log2 of sqeSize, as CC.IOSQES and Identify give it
	cqes    = 4
)

// command is a submission queue entry, decoded ([BASE] 3.3.3.1).
type command struct {
	opcode  uint8
	fuse    uint8
	psdt    uint8
	cid     uint16
	nsid    uint32
	prp1    uint64
	prp2    uint64
	cdw10   uint32
	cdw11   uint32
	cdw12   uint32
	cdw13   uint32
	cdw14   uint32
	cdw15   uint32
	arrival uint64 // how much the recorder had logged when the host rang
	verdict Verdict
}

func decodeCommand(b *[sqeSize]byte) command {
	le := binary.LittleEndian
	return command{
		opcode: b[0],
		fuse:   b[1] & 3,
		psdt:   b[1] >> 6,
		cid:    le.Uint16(b[2:]),
		nsid:   le.Uint32(b[4:]),
		prp1:   le.Uint64(b[24:]),
		prp2:   le.Uint64(b[32:]),
		cdw10:  le.Uint32(b[40:]),
		cdw11:  le.Uint32(b[44:]),
		cdw12:  le.Uint32(b[48:]),
		cdw13:  le.Uint32(b[52:]),
		cdw14:  le.Uint32(b[56:]),
		cdw15:  le.Uint32(b[60:]),
	}
}

// slba and blocks are the range of the NVM commands that have one ([NVM] 3.2). blocks is not 0-based.
func (c *command) slba() uint64   { return uint64(c.cdw11)<<32 | uint64(c.cdw10) }
func (c *command) blocks() uint64 { return uint64(c.cdw12&0xffff) + 1 }
func (c *command) fua() bool      { return c.cdw12>>30&1 != 0 }

// completion is a completion queue entry ([BASE] 3.3.3.2), without the phase.
type completion struct {
	result uint32
	sqHead uint16
	sqID   uint16
	cid    uint16
	status Status
}

// words gives the entry as its first two and its last dwords; the last has the phase.
func (c *completion) words(phase bool) (first uint64, third, last uint32) {
	last = uint32(c.cid) | uint32(c.status)<<17
	if phase {
		last |= 1 << 16
	}
	return uint64(c.result), uint32(c.sqHead) | uint32(c.sqID)<<16, last
}
