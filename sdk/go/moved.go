package lanefs

import "github.com/lanefs/lanefs/fs/share/wire"

// Moved counts the requests of a session's rings that succeeded, by how their bytes went.
type Moved struct {
	Device Count // between the drive and the program's memory
	Stage  Count // to ordinary memory or from it, on a mount with a GPU: the program's stage
	Copied Count // to a GPU's memory or from it, through a stage of the daemon's and a copy engine
	// Unreached is the beginning of the reason why the drive does not reach the GPU's memory, which Map's bytes then go to as Copied's do;
	// empty if it does.
	Unreached string
}

// Count is a number of requests and their bytes.
type Count struct{ Requests, Bytes int64 }

// Moved asks the daemon. One from before November 2026 does not know: EOPNOTSUPP.
func (s *Session) Moved() (m Moved, err error) {
	var r wire.MovedReply
	if _, err = s.call(wire.TMoved, &wire.Moved{}, &r, 0, nil); err != nil {
		return m, err
	}
	count := func(c wire.MovedCount) Count { return Count{int64(c.Requests), int64(c.Bytes)} }
	m = Moved{Device: count(r.Device), Stage: count(r.Stage), Copied: count(r.Copied)}
	if r.Flags&wire.MovedUnreached != 0 {
		m.Unreached = wire.String(r.Why)
	}
	return m, nil
}
