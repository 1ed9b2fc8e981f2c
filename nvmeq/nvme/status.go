package nvme

import "fmt"

// Status is the status field of a completion (Base §3.3.3.2.1): SC in bits 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14.
// It is dword 3 of the entry shifted right by 17; the phase bit is not part of it. Zero is success.
type Status uint16

// SCT is Status Code Type (Base §3.3.3.2.1.1): SC means something different under each.
type SCT uint8

const (
	SCTGeneric  SCT = 0
	SCTCommand  SCT = 1 // depends on the opcode
	SCTMedia    SCT = 2 // media and data integrity
	SCTPath     SCT = 3
	SCTVendor   SCT = 7
	statusCRD       = 11
	statusMore      = 1 << 13
	statusNoTry     = 1 << 14
	statusCodes     = 0x7ff
)

func (t SCT) String() string {
	switch t {
	case SCTGeneric:
		return "generic"
	case SCTCommand:
		return "command specific"
	case SCTMedia:
		return "media"
	case SCTPath:
		return "path"
	case SCTVendor:
		return "vendor specific"
	}
	return fmt.Sprintf("reserved type %d", uint8(t))
}

// NewStatus makes a status of a type and a code; dnr says that a retry will not help.
func NewStatus(t SCT, sc uint8, dnr bool) Status {
	s := Status(t)<<8 | Status(sc)
	if dnr {
		s |= statusNoTry
	}
	return s
}

// SC is the status code; it means nothing without SCT.
func (s Status) SC() uint8 { return uint8(s) }

// Code is the status code type and the status code, without the retry bits: it compares with the Status constants.
func (s Status) Code() Status { return s & statusCodes }

// SCT is the status code type.
func (s Status) SCT() SCT { return SCT(s >> 8 & 7) }

// CRD is which of Identify's three retry delays the host should wait before trying again; 0 is none.
func (s Status) CRD() int { return int(s >> statusCRD & 3) }

// More says that the error log has details.
func (s Status) More() bool { return s&statusMore != 0 }

// DNR says that the same command will fail again: do not retry.
func (s Status) DNR() bool { return s&statusNoTry != 0 }

// OK is success.
func (s Status) OK() bool { return s&statusCodes == 0 }

// Is says whether s has the type and code of t, whatever their retry bits.
func (s Status) Is(t Status) bool { return s&statusCodes == t&statusCodes }

// String is the specification's words with the numbers: "Unrecovered Read Error (sct 2h sc 81h, DNR)".
func (s Status) String() string {
	flags := ""
	if s.More() {
		flags += ", More"
	}
	if s.DNR() {
		flags += ", DNR"
	}
	return fmt.Sprintf("%s (sct %xh sc %02xh%s)", s.words(), uint8(s.SCT()), s.SC(), flags)
}

// words is the status without its numbers.
func (s Status) words() string {
	if w, ok := statusWords[s&statusCodes]; ok {
		return w
	}
	if s.SCT() == SCTVendor || s.SC() >= 0xc0 {
		return "Vendor Specific Status"
	}
	return "Reserved Status"
}
