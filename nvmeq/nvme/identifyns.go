package nvme

import (
	"encoding/binary"
	"fmt"
	"math/big"
)

// IdentifyNamespace is a namespace's sizes and formats (NVM §4.1.5.1).
type IdentifyNamespace struct {
	NSZE    uint64 // size in logical blocks
	NCAP    uint64 // blocks that may be allocated at once
	NUSE    uint64 // blocks allocated now
	NSFEAT  uint8
	NLBAF   uint8 // formats, less one
	FLBAS   uint8
	MC      uint8
	DPC     uint8
	DPS     uint8
	NMIC    uint8
	DLFEAT  DLFEAT
	NAWUN   uint16
	NAWUPF  uint16
	NABSN   uint16
	NOIOB   uint16 // blocks; a command that crosses a multiple of it is slower; 0 is not reported
	NVMCAP  *big.Int
	NPWG    uint16 // preferred write granularity in blocks, less one
	NPWA    uint16 // preferred write alignment
	NPDG    uint16 // preferred deallocate granularity
	NPDA    uint16 // preferred deallocate alignment
	NOWS    uint16 // optimal write size
	NSATTR  uint8
	NGUID   [16]byte
	EUI64   [8]byte
	Formats []LBAFormat
}

// DLFEAT is Deallocate Logical Block Features.
type DLFEAT uint8

// ReadsZero says that deallocated blocks read as zeros.
func (d DLFEAT) ReadsZero() bool { return d&7 == 1 }

// WriteZeroesDeallocates says that Write Zeroes takes the Deallocate bit.
func (d DLFEAT) WriteZeroesDeallocates() bool { return d>>3&1 == 1 }

// LBAFormat is one supported format (NVM §4.1.5.1).
type LBAFormat uint32

func (f LBAFormat) MS() int    { return int(field(f, 0, 16)) } // metadata bytes per block
func (f LBAFormat) LBADS() int { return int(field(f, 16, 8)) } // log2 of the block size
func (f LBAFormat) RP() int    { return int(field(f, 24, 2)) } // relative performance, 0 is best

// BlockSize is the bytes of data in a block; 0 when the format is not available.
func (f LBAFormat) BlockSize() int64 {
	if f.LBADS() < 9 || f.LBADS() > 32 {
		return 0
	}
	return 1 << f.LBADS()
}

// FormatIndex is the index of the format in use.
func (n *IdentifyNamespace) FormatIndex() int {
	i := int(n.FLBAS & 15)
	if n.NLBAF > 15 {
		i |= int(n.FLBAS>>5&3) << 4
	}
	return i
}

// Format is the format in use.
func (n *IdentifyNamespace) Format() (LBAFormat, error) {
	i := n.FormatIndex()
	if i >= len(n.Formats) {
		return 0, fmt.Errorf("the namespace uses LBA format %d but lists only %d", i, len(n.Formats))
	}
	return n.Formats[i], nil
}

// Protection is the end-to-end protection type in use, 0 for none.
func (n *IdentifyNamespace) Protection() int { return int(n.DPS & 7) }

// WriteProtected says that the namespace refuses writes now.
func (n *IdentifyNamespace) WriteProtected() bool { return n.NSATTR&1 == 1 }

// Shared says that other controllers of the subsystem can have the namespace at the same time.
func (n *IdentifyNamespace) Shared() bool { return n.NMIC&1 == 1 }

// Usable says why this host cannot use the namespace as it is formatted, nil when it can.
func (n *IdentifyNamespace) Usable() error {
	f, err := n.Format()
	switch {
	case n.NSZE == 0:
		return fmt.Errorf("the namespace has no blocks (it is inactive)")
	case err != nil:
		return err
	case n.Protection() != 0:
		return fmt.Errorf("the namespace uses end-to-end protection type %d, which is not supported; format it without", n.Protection())
	case f.MS() != 0:
		return fmt.Errorf("the namespace has %d bytes of metadata per block, which is not supported; choose an LBA format without metadata", f.MS())
	case f.BlockSize() < 512 || f.BlockSize() > 4096:
		return fmt.Errorf("the namespace's blocks have 2^%d bytes; 512 to 4096 are supported", f.LBADS())
	case n.NSZE > (1<<63-1)/uint64(f.BlockSize()):
		return fmt.Errorf("the namespace's size of %d blocks of %d bytes cannot be", n.NSZE, f.BlockSize())
	}
	return nil
}

// DecodeIdentifyNamespace reads the structure from exactly IdentifySize bytes.
func DecodeIdentifyNamespace(b []byte) (*IdentifyNamespace, error) {
	if len(b) != IdentifySize {
		return nil, fmt.Errorf("nvme: Identify Namespace of %d bytes, want %d", len(b), IdentifySize)
	}
	le := binary.LittleEndian
	n := &IdentifyNamespace{
		NSZE: le.Uint64(b[0:]), NCAP: le.Uint64(b[8:]), NUSE: le.Uint64(b[16:]),
		NSFEAT: b[24], NLBAF: b[25], FLBAS: b[26], MC: b[27], DPC: b[28], DPS: b[29], NMIC: b[30],
		DLFEAT: DLFEAT(b[33]), NAWUN: le.Uint16(b[34:]), NAWUPF: le.Uint16(b[36:]), NABSN: le.Uint16(b[40:]),
		NOIOB: le.Uint16(b[46:]), NVMCAP: uint128(b[48:64]),
		NPWG: le.Uint16(b[64:]), NPWA: le.Uint16(b[66:]), NPDG: le.Uint16(b[68:]), NPDA: le.Uint16(b[70:]),
		NOWS: le.Uint16(b[72:]), NSATTR: b[99],
		NGUID: [16]byte(b[104:120]), EUI64: [8]byte(b[120:128]),
	}
	// 64 formats at most; a larger NLBAF is not valid.
	for i := 0; i <= min(int(n.NLBAF), 63); i++ {
		n.Formats = append(n.Formats, LBAFormat(le.Uint32(b[128+4*i:])))
	}
	return n, nil
}

// NVMController is the command set specific part of the controller (NVM §4.1.5.4). Zero means not reported.
type NVMController struct {
	VSL   uint8  // Verify's limit, log2 in units of CAP.MPSMIN
	WZSL  uint8  // Write Zeroes' limit, likewise
	WUSL  uint8  // Write Uncorrectable's limit, likewise
	DMRL  uint8  // ranges in one Dataset Management command
	DMRSL uint32 // blocks in one range
	DMSL  uint64 // blocks in one command
}

// DecodeNVMController reads the structure from exactly IdentifySize bytes.
func DecodeNVMController(b []byte) (*NVMController, error) {
	if len(b) != IdentifySize {
		return nil, fmt.Errorf("nvme: NVM Identify Controller of %d bytes, want %d", len(b), IdentifySize)
	}
	le := binary.LittleEndian
	return &NVMController{VSL: b[0], WZSL: b[1], WUSL: b[2], DMRL: b[3], DMRSL: le.Uint32(b[4:]), DMSL: le.Uint64(b[8:])}, nil
}
