package driver

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The layout is that of cuda.h: 16 words of 8 bytes.
func TestRectangle(t *testing.T) {
	var r rectangle
	require.EqualValues(t, 128, unsafe.Sizeof(r))
	for name, at := range map[string][2]uintptr{
		"srcMemoryType": {16, unsafe.Offsetof(r.srcType)}, "srcDevice": {32, unsafe.Offsetof(r.src)}, "srcPitch": {48, unsafe.Offsetof(r.srcPitch)},
		"dstMemoryType": {72, unsafe.Offsetof(r.dstType)}, "dstDevice": {88, unsafe.Offsetof(r.dst)}, "dstPitch": {104, unsafe.Offsetof(r.dstPitch)},
		"WidthInBytes": {112, unsafe.Offsetof(r.width)}, "Height": {120, unsafe.Offsetof(r.height)},
	} {
		require.Equal(t, at[0], at[1], name)
	}
}
