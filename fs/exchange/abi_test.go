package exchange

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestLayout holds the structures against the kernel's: sizes and offsets are those that gcc 12 gives for include/uapi/linux/fuse.h of
// Linux 6.18.
func TestLayout(t *testing.T) {
	require.EqualValues(t, InHeaderSize, unsafe.Sizeof(InHeader{}))
	require.EqualValues(t, OutHeaderSize, unsafe.Sizeof(outHeader{}))
	require.EqualValues(t, 32, unsafe.Offsetof(InHeader{}.PID))
	require.EqualValues(t, 40, readInSize)
	require.EqualValues(t, 40, writeInSize)
}
