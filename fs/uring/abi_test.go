package uring

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestLayout holds the structures against the kernel's: sizes and offsets are those that gcc 12 gives for include/uapi/linux/fuse.h of
// Linux 6.18.
func TestLayout(t *testing.T) {
	require.EqualValues(t, 24, unsafe.Sizeof(cmdReq{}))
	require.EqualValues(t, 8, unsafe.Offsetof(cmdReq{}.commitID))
	require.EqualValues(t, 16, unsafe.Offsetof(cmdReq{}.qid))
	require.EqualValues(t, 288, unsafe.Sizeof(header{}))
	require.EqualValues(t, 128, unsafe.Offsetof(header{}.opIn))
	require.EqualValues(t, 256, unsafe.Offsetof(header{}.ent))
	require.EqualValues(t, 32, unsafe.Sizeof(entInOut{}))
	require.EqualValues(t, 8, unsafe.Offsetof(entInOut{}.commitID))
	require.EqualValues(t, 16, unsafe.Offsetof(entInOut{}.payloadSz))
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0,2-3,8": {0, 2, 3, 8}} {
		have, err := parseCPUs(text)
		require.NoError(t, err)
		require.Equal(t, want, have)
	}
	for _, text := range []string{"", "x", "3-1", "1-", "-1"} {
		_, err := parseCPUs(text)
		require.Error(t, err, "%q", text)
	}
}
