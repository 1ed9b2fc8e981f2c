package disk

import "time"

// Timestamp is a time of an inode: seconds since 1970 and nanoseconds. On disk it has 32 bits of signed seconds and,
// where the inode is large enough, two more bits of seconds and 30 of nanoseconds ([layout] Inode Timestamps).
type Timestamp struct {
	Sec  int64
	Nsec uint32
}

// The seconds that 34 bits based at 1901 can express.
const (
	minTime = -1 << 31
	maxTime = 1<<34 - 1<<31 - 1
)

// TimestampOf is the Timestamp of t.
func TimestampOf(t time.Time) Timestamp { return Timestamp{t.Unix(), uint32(t.Nanosecond())} }

// Time is t as a time.Time.
func (t Timestamp) Time() time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

func decodeTime(lo, extra uint32) Timestamp {
	nsec := extra >> 2
	if nsec > 999_999_999 {
		nsec = 0
	}
	return Timestamp{Sec: int64(int32(lo)) + int64(extra&3)<<32, Nsec: nsec}
}

// encode gives the low word and the extra word. Seconds out of range become the nearest that is in it.
func (t Timestamp) encode() (lo, extra uint32) {
	sec := min(max(t.Sec, minTime), maxTime)
	lo = uint32(sec)
	epoch := uint32((sec - int64(int32(lo))) >> 32)
	return lo, epoch&3 | t.Nsec<<2
}
