// Package units prints quantities for people: bytes and durations. Each is in the largest unit that it fills, with few digits.
package units

import (
	"fmt"
	"time"
)

// Bytes is a number of bytes in the largest binary unit that it fills.
func Bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d %s", n/u.size, u.name)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Duration is a duration with three digits, in the largest unit that leaves a digit before the point: ns, µs, ms or s.
func Duration(d time.Duration) string {
	unit, name := time.Nanosecond, "ns"
	switch {
	case d >= time.Second:
		unit, name = time.Second, "s"
	case d >= time.Millisecond:
		unit, name = time.Millisecond, "ms"
	case d >= time.Microsecond:
		unit, name = time.Microsecond, "µs"
	}
	v := float64(d) / float64(unit)
	switch {
	case unit == time.Nanosecond || v >= 100:
		return fmt.Sprintf("%.0f %s", v, name)
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, name)
	}
	return fmt.Sprintf("%.2f %s", v, name)
}
