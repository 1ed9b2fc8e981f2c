package softctl

import "fmt"

// Status is the Status Field of a completion without its phase bit ([BASE] 3.3.3.2): SC in bits 7:0, SCT in 10:8, CRD
// in 12:11, More in 13, Do Not Retry in 14.
type Status uint16

const (
	statusMore Status = 1 << 13
	// DNR says that the same command would fail again.
	DNR Status = 1 << 14

	statusCode = 0x7ff // SCT and SC
)

// Generic command statuses, SCT 0 ([BASE] figure "Generic Command Status Values").
const (
	Success              Status = 0x000
	InvalidOpcode        Status = 0x001 | DNR
	InvalidField         Status = 0x002 | DNR
	CommandIDConflict    Status = 0x003 | DNR
	DataTransferError    Status = 0x004
	InternalError        Status = 0x006
	AbortRequested       Status = 0x007
	AbortedSQDeletion    Status = 0x008
	InvalidNamespace     Status = 0x00b | DNR
	CommandSequenceError Status = 0x00c | DNR
	InvalidPRPOffset     Status = 0x013 | DNR
	WriteProtected       Status = 0x020 | DNR
	LBAOutOfRange        Status = 0x080 | DNR
	CapacityExceeded     Status = 0x081 // no DNR: when there is room again, it succeeds
)

// Command specific statuses, SCT 1.
const (
	InvalidCompletionQueue   Status = 0x100 | DNR
	InvalidQueueID           Status = 0x101 | DNR
	InvalidQueueSize         Status = 0x102 | DNR
	AsyncEventLimitExceeded  Status = 0x105 | DNR
	InvalidInterruptVector   Status = 0x108 | DNR
	InvalidLogPage           Status = 0x109 | DNR
	InvalidQueueDeletion     Status = 0x10c | DNR
	FeatureNotSaveable       Status = 0x10d | DNR
	FeatureNotNamespaceBound Status = 0x10f | DNR
)

// Media and data integrity statuses, SCT 2.
const (
	WriteFault      Status = 0x280
	UnrecoveredRead Status = 0x281
	CompareFailure  Status = 0x285 | DNR
)

// SCT is the status code type.
func (s Status) SCT() uint8 { return uint8(s>>8) & 7 }

// SC is the status code.
func (s Status) SC() uint8 { return uint8(s) }

// Failed says that the command did not succeed.
func (s Status) Failed() bool { return s&statusCode != 0 }

func (s Status) String() string {
	r := fmt.Sprintf("SCT %xh SC %02xh", s.SCT(), s.SC())
	if s&DNR != 0 {
		r += " DNR"
	}
	return r
}
