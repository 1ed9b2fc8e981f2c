package lanefs

import "time"

// By which way the pieces of a part of a stage go between the stage and a GPU's memory: each by a copy, or all by one launch of a kernel. The rule is
// the C library's, and sdk/c/way.h says why; TestOneRule holds the two alike.
const (
	wayFew      = 8                       // copies
	wayMany     = 256                     // copies
	wayLarge    = 256 << 10               // bytes of a copy, on the average
	wayLate     = time.Millisecond        // what a kernel of n bytes takes at most is wayLate and n/wayEachByte ns
	wayEachByte = 10                      // 1/ns
	wayWhile    = 1000 * time.Millisecond // so long after a kernel that was late others would be
)

// byKernel says whether what n copies do, size bytes in all, is done by a kernel. late: one was, less than wayWhile ago.
func byKernel(n, size int64, late bool) bool {
	return n > wayFew && size/n < wayLarge && (!late || n > wayMany)
}

// wasLate says whether a kernel that copied size bytes in d was late.
func wasLate(d time.Duration, size int64) bool { return d > wayLate+time.Duration(size/wayEachByte) }
