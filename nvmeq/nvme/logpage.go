package nvme

import (
	"encoding/binary"
	"fmt"
	"math/big"
)

// LID is a log page identifier (Base §5.16.1).
type LID uint8

const (
	LIDSupported LID = 0x00
	LIDError     LID = 0x01
	LIDSMART     LID = 0x02
	LIDFirmware  LID = 0x03
	LIDChangedNS LID = 0x04
	LIDEffects   LID = 0x05
)

// Sizes of log pages in bytes.
const (
	ErrorEntrySize = 64
	SMARTSize      = 512
)

// ErrorEntry is one entry of the error information log (Base §5.16.1.2).
type ErrorEntry struct {
	Count    uint64 // 0 marks an unused entry
	SQID     uint16
	CID      uint16
	Status   Status
	Location uint16 // PEL: byte 7:0 and bit 10:8 of the parameter at fault; FFFFh is unknown
	LBA      uint64
	NSID     uint32
	VS       uint8
	TRTYPE   uint8
	CSI      uint64 // command specific information
	TTSI     uint16
}

// DecodeErrorLog reads the log's used entries, newest first. b is a whole number of entries.
func DecodeErrorLog(b []byte) ([]ErrorEntry, error) {
	if len(b)%ErrorEntrySize != 0 {
		return nil, fmt.Errorf("nvme: error log of %d bytes, want a multiple of %d", len(b), ErrorEntrySize)
	}
	le := binary.LittleEndian
	var list []ErrorEntry
	for ; len(b) > 0; b = b[ErrorEntrySize:] {
		e := ErrorEntry{
			Count: le.Uint64(b[0:]), SQID: le.Uint16(b[8:]), CID: le.Uint16(b[10:]), Status: Status(le.Uint16(b[12:]) >> 1),
			Location: le.Uint16(b[14:]), LBA: le.Uint64(b[16:]), NSID: le.Uint32(b[24:]), VS: b[28], TRTYPE: b[29],
			CSI: le.Uint64(b[32:]), TTSI: le.Uint16(b[40:]),
		}
		if e.Count != 0 {
			list = append(list, e)
		}
	}
	return list, nil
}

func (e ErrorEntry) String() string {
	return fmt.Sprintf("error %d: queue %d command %d namespace %d LBA %d: %v", e.Count, e.SQID, e.CID, e.NSID, e.LBA, e.Status)
}

// SMART is the SMART / health information log (Base §5.16.1.3).
type SMART struct {
	Warning         SMARTWarning
	Temperature     uint16 // kelvin
	Spare           uint8  // percent
	SpareThreshold  uint8
	PercentageUsed  uint8
	DataRead        *big.Int // units of 1000 × 512 bytes
	DataWritten     *big.Int
	HostReads       *big.Int // commands
	HostWrites      *big.Int
	BusyMinutes     *big.Int
	PowerCycles     *big.Int
	PowerOnHours    *big.Int
	UnsafeShutdowns *big.Int
	MediaErrors     *big.Int
	ErrorLogEntries *big.Int
	WarningTempMin  uint32 // minutes
	CriticalTempMin uint32
	Sensors         [8]uint16 // kelvin, 0 where there is none
}

// SMARTWarning is the critical warning byte.
type SMARTWarning uint8

// Words lists what the bits mean, nil when all is well.
func (w SMARTWarning) Words() []string {
	var out []string
	for i, s := range [...]string{"spare capacity below its threshold", "temperature beyond its threshold", "reliability degraded",
		"media is read-only", "volatile memory backup failed", "persistent memory region unreliable"} {
		if w>>i&1 == 1 {
			out = append(out, s)
		}
	}
	return out
}

// DecodeSMART reads the log from exactly SMARTSize bytes.
func DecodeSMART(b []byte) (*SMART, error) {
	if len(b) != SMARTSize {
		return nil, fmt.Errorf("nvme: SMART log of %d bytes, want %d", len(b), SMARTSize)
	}
	le := binary.LittleEndian
	s := &SMART{
		Warning: SMARTWarning(b[0]), Temperature: le.Uint16(b[1:]), Spare: b[3], SpareThreshold: b[4], PercentageUsed: b[5],
		DataRead: uint128(b[32:]), DataWritten: uint128(b[48:]), HostReads: uint128(b[64:]), HostWrites: uint128(b[80:]),
		BusyMinutes: uint128(b[96:]), PowerCycles: uint128(b[112:]), PowerOnHours: uint128(b[128:]),
		UnsafeShutdowns: uint128(b[144:]), MediaErrors: uint128(b[160:]), ErrorLogEntries: uint128(b[176:]),
		WarningTempMin: le.Uint32(b[192:]), CriticalTempMin: le.Uint32(b[196:]),
	}
	for i := range s.Sensors {
		s.Sensors[i] = le.Uint16(b[200+2*i:])
	}
	return s, nil
}
