// Package span has the sizes of allocations. Every runtime checks them here, and rounds them up to its units.
package span

import "fmt"

// Check says whether n bytes can be asked of a runtime at all. The error begins with runtime, its name.
func Check(runtime string, n int64) error {
	if n <= 0 || n > 1<<46 {
		return fmt.Errorf("%s: %d bytes of memory: must be between 1 and 2^46", runtime, n)
	}
	return nil
}

// CheckRange says whether a range of max bytes with backed of them in use makes sense.
func CheckRange(runtime string, backed, max int64) error {
	if max < backed {
		return fmt.Errorf("%s: reserve %d bytes with %d backed: the range must hold them", runtime, max, backed)
	}
	if backed < 0 {
		return fmt.Errorf("%s: back %d bytes: must not be negative", runtime, backed)
	}
	return Check(runtime, max)
}

// RoundUp is n rounded up to a multiple of unit.
func RoundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
