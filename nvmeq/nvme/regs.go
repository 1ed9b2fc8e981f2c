package nvme

import (
	"fmt"
	"time"
)

// Offsets of the controller's properties in BAR 0 (Base §3.1.3, PCIe §3.1.1).
const (
	RegCAP    = 0x00
	RegVS     = 0x08
	RegCC     = 0x14
	RegCSTS   = 0x1c
	RegAQA    = 0x24
	RegASQ    = 0x28
	RegACQ    = 0x30
	RegCMBLOC = 0x38
	RegCMBSZ  = 0x3c
	RegCMBMSC = 0x50
	RegCRTO   = 0x68
	RegDBS    = 0x1000 // the first doorbell
)

// CAP is Controller Capabilities (Base §3.1.3.1).
type CAP uint64

// field is the n bits of v from bit lo.
func field[T ~uint16 | ~uint32 | ~uint64](v T, lo, n uint) uint64 {
	return uint64(v) >> lo & (1<<n - 1)
}

// MQES is the largest queue, in entries. The register holds one less.
func (c CAP) MQES() int { return int(field(c, 0, 16)) + 1 }

// TO is the longest the controller takes to become ready or to stop being it.
func (c CAP) TO() time.Duration { return time.Duration(field(c, 24, 8)) * 500 * time.Millisecond }

// DSTRD is the doorbell stride: doorbells are 4 << DSTRD bytes apart.
func (c CAP) DSTRD() uint { return uint(field(c, 32, 4)) }

// CSS is the set of I/O command sets; see the CSS bits.
func (c CAP) CSS() CSS { return CSS(field(c, 37, 8)) }

// MPSMIN is the smallest host memory page in bytes: the unit of MDTS.
func (c CAP) MPSMIN() int64 { return 4096 << field(c, 48, 4) }

// MPSMAX is the largest host memory page in bytes.
func (c CAP) MPSMAX() int64 { return 4096 << field(c, 52, 4) }

// CMBS says that a controller memory buffer exists and CMBLOC and CMBSZ may be read.
func (c CAP) CMBS() bool { return field(c, 57, 1) == 1 }

// CRWMS says that ready-with-media is a mode of the controller, and that CRTO may be read.
func (c CAP) CRWMS() bool { return field(c, 59, 1) == 1 }

// CSS is CAP.CSS: the I/O command sets that a controller offers.
type CSS uint8

const (
	CSSNVM  CSS = 1 << 0 // the NVM command set
	CSSIOCS CSS = 1 << 6 // one or more sets, chosen by Identify's I/O command set vector
)

// VS is Version (Base §3.1.3.2).
type VS uint32

// Major, Minor and Patch are the three numbers of the revision.
func (v VS) Major() int { return int(field(v, 16, 16)) }
func (v VS) Minor() int { return int(field(v, 8, 8)) }
func (v VS) Patch() int { return int(field(v, 0, 8)) }

func (v VS) String() string { return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch()) }

// AtLeast says whether the controller claims revision major.minor or a later one.
func (v VS) AtLeast(major, minor int) bool {
	return v.Major() > major || v.Major() == major && v.Minor() >= minor
}

// CRTO is Controller Ready Timeouts (Base §3.1.3.20).
type CRTO uint32

// CRWMT is the longest wait for ready with media.
func (c CRTO) CRWMT() time.Duration { return time.Duration(field(c, 0, 16)) * 500 * time.Millisecond }

// AQA is Admin Queue Attributes (Base §3.1.3.8).
type AQA uint32

// NewAQA states the admin queues' sizes in entries.
func NewAQA(sq, cq int) AQA { return AQA(uint32(cq-1)<<16 | uint32(sq-1)) }
