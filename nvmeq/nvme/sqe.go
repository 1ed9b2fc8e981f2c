package nvme

import (
	"encoding/binary"
	"fmt"
)

// Sizes of queue entries in bytes (Base §3.3.3).
const (
	SQESize = 64
	CQESize = 16
)

// SQE is a submission queue entry (Base §3.3.3.1). Data is addressed by PRPs; SGLs and fused commands are not used.
type SQE struct {
	Opcode Opcode
	Flags  uint8 // FUSE in bits 1:0, PSDT in bits 7:6
	CID    uint16
	NSID   uint32
	CDW2   uint32
	CDW3   uint32
	MPTR   uint64
	PRP1   IOVA
	PRP2   IOVA
	CDW10  uint32
	CDW11  uint32
	CDW12  uint32
	CDW13  uint32
	CDW14  uint32
	CDW15  uint32
}

// Encode writes the entry to b, which is exactly SQESize bytes long.
func (s *SQE) Encode(b []byte) {
	if len(b) != SQESize {
		panic(fmt.Sprintf("nvme: SQE encoded into %d bytes, not %d", len(b), SQESize))
	}
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(s.Opcode)|uint32(s.Flags)<<8|uint32(s.CID)<<16)
	le.PutUint32(b[4:], s.NSID)
	le.PutUint32(b[8:], s.CDW2)
	le.PutUint32(b[12:], s.CDW3)
	le.PutUint64(b[16:], s.MPTR)
	le.PutUint64(b[24:], uint64(s.PRP1))
	le.PutUint64(b[32:], uint64(s.PRP2))
	for i, v := range [...]uint32{s.CDW10, s.CDW11, s.CDW12, s.CDW13, s.CDW14, s.CDW15} {
		le.PutUint32(b[40+4*i:], v)
	}
}

// DecodeSQE reads an entry from exactly SQESize bytes.
func DecodeSQE(b []byte) (SQE, error) {
	if len(b) != SQESize {
		return SQE{}, fmt.Errorf("nvme: submission queue entry of %d bytes, want %d", len(b), SQESize)
	}
	le := binary.LittleEndian
	return SQE{
		Opcode: Opcode(b[0]), Flags: b[1], CID: le.Uint16(b[2:]), NSID: le.Uint32(b[4:]),
		CDW2: le.Uint32(b[8:]), CDW3: le.Uint32(b[12:]), MPTR: le.Uint64(b[16:]),
		PRP1: IOVA(le.Uint64(b[24:])), PRP2: IOVA(le.Uint64(b[32:])),
		CDW10: le.Uint32(b[40:]), CDW11: le.Uint32(b[44:]), CDW12: le.Uint32(b[48:]),
		CDW13: le.Uint32(b[52:]), CDW14: le.Uint32(b[56:]), CDW15: le.Uint32(b[60:]),
	}, nil
}

// CQE is a completion queue entry (Base §3.3.3.2).
type CQE struct {
	DW0    uint32 // the command's result
	DW1    uint32
	SQHD   uint16 // entries of the submission queue before this one are free again
	SQID   uint16
	CID    uint16
	Phase  bool
	Status Status
}

// DecodeCQE reads an entry from exactly CQESize bytes, which must not change meanwhile: of a live queue the phase is read first.
func DecodeCQE(b []byte) (CQE, error) {
	if len(b) != CQESize {
		return CQE{}, fmt.Errorf("nvme: completion queue entry of %d bytes, want %d", len(b), CQESize)
	}
	le := binary.LittleEndian
	dw3 := le.Uint32(b[12:])
	return CQE{
		DW0: le.Uint32(b[0:]), DW1: le.Uint32(b[4:]), SQHD: le.Uint16(b[8:]), SQID: le.Uint16(b[10:]),
		CID: uint16(dw3), Phase: dw3>>16&1 == 1, Status: Status(dw3 >> 17),
	}, nil
}
