package softctl

import "fmt"

// Status is the Status Field of a completion without its phase bit ([BASE] 3.3.3.2): SC in bits 7:0, SCT in 10:8, CRD
// in 12:11, More in 13, Do Not Retry in 14.
type Status uint16

const (
	statusMore Status = 1 << 13
	// doNotRetry (DNR) says that the same command would fail again.
	doNotRetry Status = 1 << 14

	statusCode = 0x7ff // SCT and SC
)

// Generic command statuses, SCT 0 ([BASE] figure "Generic Command Status Values").
const (
	success              Status = 0x000
	invalidOpcode        Status = 0x001 | doNotRetry
	invalidField         Status = 0x002 | doNotRetry
	commandIDConflict    Status = 0x003 | doNotRetry
	dataTransferError    Status = 0x004
	InternalError        Status = 0x006
	abortRequested       Status = 0x007
	abortedSQDeletion    Status = 0x008
	invalidNamespace     Status = 0x00b | doNotRetry
	commandSequenceError Status = 0x00c | doNotRetry
	invalidPRPOffset     Status = 0x013 | doNotRetry
	writeProtected       Status = 0x020 | doNotRetry
	lbaOutOfRange        Status = 0x080 | doNotRetry
	capacityExceeded     Status = 0x081 // no DNR: when there is room again, it succeeds
)

// Command specific statuses, SCT 1.
const (
	invalidCompletionQueue   Status = 0x100 | doNotRetry
	invalidQueueID           Status = 0x101 | doNotRetry
	invalidQueueSize         Status = 0x102 | doNotRetry
	asyncEventLimitExceeded  Status = 0x105 | doNotRetry
	invalidInterruptVector   Status = 0x108 | doNotRetry
	invalidLogPage           Status = 0x109 | doNotRetry
	invalidQueueDeletion     Status = 0x10c | doNotRetry
	featureNotSaveable       Status = 0x10d | doNotRetry
	featureNotNamespaceBound Status = 0x10f | doNotRetry
)

// Media and data integrity statuses, SCT 2.
const (
	WriteFault      Status = 0x280
	unrecoveredRead Status = 0x281
	compareFailure  Status = 0x285 | doNotRetry
)

// sct is the status code type.
func (s Status) sct() uint8 { return uint8(s>>8) & 7 }

// sc is the status code.
func (s Status) sc() uint8 { return uint8(s) }

// failed says that the command did not succeed.
func (s Status) failed() bool { return s&statusCode != 0 }

func (s Status) String() string {
	r := fmt.Sprintf("SCT %xh SC %02xh", s.sct(), s.sc())
	if s&doNotRetry != 0 {
		r += " DNR"
	}
	return r
}
