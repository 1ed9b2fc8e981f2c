package nvme

import "errors"

// StatusError is a command that the controller ended with a status other than success. It is the one place where a
// Status becomes an error.
type StatusError struct {
	Admin  bool // the command was for the admin queue
	Opcode Opcode
	NSID   uint32
	HasLBA bool
	LBA    uint64 // the first block
	Blocks uint32 // how many
	Status Status
}

// Error reads like "nvme: Read of 8 blocks at LBA 4096 of namespace 1: Unrecovered Read Error (sct 2h sc 81h, DNR)".
func (e *StatusError) Error() string {
	return "nvme: " + Describe(e.Opcode, e.Admin, e.NSID, e.LBA, e.Blocks) + ": " + e.Status.String()
}

// Err is nil for success and a *StatusError naming the command otherwise.
func (s *SQE) Err(st Status, admin bool) error {
	if st.OK() {
		return nil
	}
	e := &StatusError{Admin: admin, Opcode: s.Opcode, NSID: s.NSID, Status: st}
	if !admin && s.Opcode.HasLBA() {
		e.HasLBA, e.LBA, e.Blocks = true, uint64(s.CDW11)<<32|uint64(s.CDW10), s.CDW12&0xffff+1
	}
	return e
}

// Refused says that the controller answered a command with an error status, rather than not at all.
func Refused(err error) bool {
	var s *StatusError
	return errors.As(err, &s)
}
