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

// TimestampOf is the Timestamp of t, or the one next to it that can be stored. As in the kernel, both ends of the range have whole seconds only.
func TimestampOf(t time.Time) Timestamp {
	sec := t.Unix()
	if sec <= minTime || sec >= maxTime {
		return Timestamp{Sec: min(max(sec, minTime), maxTime)}
	}
	return Timestamp{sec, uint32(t.Nanosecond())}
}

// SuperTime is t as the superblock has its times: seconds since 1970 in 40 bits. As in the kernel, what is out of range becomes the nearest that is in it.
func SuperTime(t time.Time) uint64 { return uint64(min(max(t.Unix(), 0), 1<<40-1)) }

// Bits is t in 64 bits: the low word, and above it the extra word. It is 0 for the begin of 1970.
func (t Timestamp) Bits() uint64 {
	lo, extra := t.encode()
	return uint64(extra)<<32 | uint64(lo)
}

// TimestampOfBits is the Timestamp of which Bits are given.
func TimestampOfBits(b uint64) Timestamp { return decodeTime(uint32(b), uint32(b>>32)) }

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
