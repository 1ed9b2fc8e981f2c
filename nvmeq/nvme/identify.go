package nvme

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// IdentifySize is the size in bytes of every Identify data structure (Base §5.17).
const IdentifySize = 4096

// CNS selects what Identify returns (Base §5.17.1).
type CNS uint8

const (
	CNSNamespace     CNS = 0x00
	CNSController    CNS = 0x01
	CNSActiveList    CNS = 0x02
	CNSDescriptors   CNS = 0x03
	CNSCmdSetNS      CNS = 0x05 // command set specific, of a namespace
	CNSCmdSetCtrl    CNS = 0x06 // command set specific, of the controller
	CNSAllocatedList CNS = 0x10
)

// CSI is a command set identifier (Base §5.17.2.3).
type CSI uint8

const (
	CSINVM   CSI = 0
	CSIKV    CSI = 1
	CSIZoned CSI = 2
)

func (c CSI) String() string {
	switch c {
	case CSINVM:
		return "NVM"
	case CSIKV:
		return "Key Value"
	case CSIZoned:
		return "Zoned Namespace"
	}
	return fmt.Sprintf("command set %#02x", uint8(c))
}

// IdentifyController is what the controller says of itself (Base §5.17.2.1), without the fields of fabrics and of namespace
// management.
type IdentifyController struct {
	VID      uint16 // PCI vendor
	SSVID    uint16
	SN       string
	MN       string
	FR       string
	RAB      uint8
	IEEE     uint32 // OUI
	CMIC     uint8
	MDTS     uint8 // log2 of the largest transfer in units of CAP.MPSMIN; 0 is no limit
	CNTLID   uint16
	VER      VS
	RTD3R    uint32
	RTD3E    uint32 // microseconds that a normal shutdown takes; 0 is not reported
	OAES     uint32
	CTRATT   uint32
	CNTRLTYP uint8
	CRDT     [3]uint16 // retry delays in units of 100 ms
	OACS     OACS
	ACL      uint8 // Aborts outstanding at once, less one
	AERL     uint8 // Asynchronous Event Requests outstanding at once, less one
	FRMW     uint8
	LPA      uint8
	ELPE     uint8 // entries of the error log, less one
	WCTEMP   uint16
	CCTEMP   uint16
	HMPRE    uint32   // host memory that the controller would like to have, in units of 4 KiB; 0: it uses none
	HMMIN    uint32   // the least that is of use to it
	HMMINDS  uint32   // the least size of one piece, in units of 4 KiB; 0 is any
	HMMAXD   uint16   // the most pieces; 0 is any number
	TNVMCAP  *big.Int // bytes
	UNVMCAP  *big.Int
	SQES     QES
	CQES     QES
	MAXCMD   uint16
	NN       uint32 // the largest NSID
	ONCS     ONCS
	FUSES    uint16
	FNA      uint8
	VWC      VWC
	AWUN     uint16 // blocks written atomically, less one
	AWUPF    uint16 // likewise at a power failure
	SGLS     uint32
	SUBNQN   string
}

// Several says that the subsystem may have more controllers than this one, which may be a virtual function's (CMIC).
func (c *IdentifyController) Several() bool { return c.CMIC&(1<<1|1<<2) != 0 }

// OACS is Optional Admin Command Support.
type OACS uint16

// Namespaces says that the controller supports Namespace Management and Attachment.
func (o OACS) Namespaces() bool { return o>>3&1 == 1 }

// DoorbellBuf says that the controller supports Doorbell Buffer Config.
func (o OACS) DoorbellBuf() bool { return o>>8&1 == 1 }

// ONCS is Optional NVM Command Support.
type ONCS uint16

// Compare, DSM and WriteZeroes say that the controller supports Compare, Dataset Management and Write Zeroes.
func (o ONCS) Compare() bool     { return o>>0&1 == 1 }
func (o ONCS) DSM() bool         { return o>>2&1 == 1 }
func (o ONCS) WriteZeroes() bool { return o>>3&1 == 1 }

// VWC is Volatile Write Cache.
type VWC uint8

// Present says that a volatile write cache exists: writes need Flush or FUA to be durable.
func (v VWC) Present() bool { return v&1 == 1 }

// FlushAll says that Flush of NSID FFFFFFFFh flushes every namespace.
func (v VWC) FlushAll() bool { return v>>1&3 == 3 }

// QES is SQES or CQES: the sizes of queue entries that the controller takes.
type QES uint8

// Min is the required and smallest entry size in bytes, Max the largest.
func (q QES) Min() int { return 1 << (q & 15) }
func (q QES) Max() int { return 1 << (q >> 4) }

// MaxTransfer is the largest transfer of one command in bytes: MDTS in units of CAP.MPSMIN; 0 is no limit.
func (c *IdentifyController) MaxTransfer(mpsmin int64) int64 {
	if c.MDTS == 0 || c.MDTS > 40 {
		return 0
	}
	return mpsmin << c.MDTS
}

// HostBuffer is how much memory of the host the controller would like to have for itself, and the least that is of use to it, in bytes (Base §8.9).
// Both are 0 if it uses none.
func (c *IdentifyController) HostBuffer() (want, least int64) {
	const unit = 4096
	return int64(c.HMPRE) * unit, int64(min(c.HMMIN, c.HMPRE)) * unit
}

// RetryDelay is how long a status with this CRD asks the host to wait before it tries again; 0 is not at all.
func (c *IdentifyController) RetryDelay(crd int) time.Duration {
	if crd < 1 || crd > len(c.CRDT) {
		return 0
	}
	return time.Duration(c.CRDT[crd-1]) * 100 * time.Millisecond
}

// DecodeIdentifyController reads the structure from exactly IdentifySize bytes.
func DecodeIdentifyController(b []byte) (*IdentifyController, error) {
	if len(b) != IdentifySize {
		return nil, fmt.Errorf("nvme: Identify Controller of %d bytes, want %d", len(b), IdentifySize)
	}
	le := binary.LittleEndian
	return &IdentifyController{
		VID: le.Uint16(b[0:]), SSVID: le.Uint16(b[2:]),
		SN: text(b[4:24]), MN: text(b[24:64]), FR: text(b[64:72]),
		RAB: b[72], IEEE: uint32(b[73]) | uint32(b[74])<<8 | uint32(b[75])<<16, CMIC: b[76], MDTS: b[77],
		CNTLID: le.Uint16(b[78:]), VER: VS(le.Uint32(b[80:])), RTD3R: le.Uint32(b[84:]), RTD3E: le.Uint32(b[88:]),
		OAES: le.Uint32(b[92:]), CTRATT: le.Uint32(b[96:]), CNTRLTYP: b[111],
		CRDT: [3]uint16{le.Uint16(b[128:]), le.Uint16(b[130:]), le.Uint16(b[132:])},
		OACS: OACS(le.Uint16(b[256:])), ACL: b[258], AERL: b[259], FRMW: b[260], LPA: b[261], ELPE: b[262],
		WCTEMP: le.Uint16(b[266:]), CCTEMP: le.Uint16(b[268:]),
		HMPRE: le.Uint32(b[272:]), HMMIN: le.Uint32(b[276:]), HMMINDS: le.Uint32(b[336:]), HMMAXD: le.Uint16(b[340:]),
		TNVMCAP: uint128(b[280:296]), UNVMCAP: uint128(b[296:312]),
		SQES: QES(b[512]), CQES: QES(b[513]), MAXCMD: le.Uint16(b[514:]), NN: le.Uint32(b[516:]),
		ONCS: ONCS(le.Uint16(b[520:])), FUSES: le.Uint16(b[522:]), FNA: b[524], VWC: VWC(b[525]),
		AWUN: le.Uint16(b[526:]), AWUPF: le.Uint16(b[528:]), SGLS: le.Uint32(b[536:]), SUBNQN: text(b[768:1024]),
	}, nil
}

// text is an ASCII field: padded with spaces on the right by the specification, with zeros by some controllers. What is
// not printable becomes '?', so that a hostile name cannot drive a terminal.
func text(b []byte) string {
	if i := strings.IndexByte(string(b), 0); i >= 0 {
		b = b[:i]
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b)))
}

// uint128 is a little-endian number of 16 bytes.
func uint128(b []byte) *big.Int {
	be := make([]byte, 16)
	for i, v := range b[:16] {
		be[15-i] = v
	}
	return new(big.Int).SetBytes(be)
}
