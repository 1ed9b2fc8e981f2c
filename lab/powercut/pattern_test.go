package powercut

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	whole := make([]byte, 4096)
	s := stamp{worker: 3, file: 12, op: 345}
	fill(whole, s, 8192)
	for _, off := range []int64{0, 1, 15, 16, 17, 1000} {
		part := make([]byte, 100)
		fill(part, s, 8192+off)
		require.Equal(t, whole[off:off+100], part, "bytes depend on their place only")
		require.Contains(t, identify(part, 8192+off), "worker 3, file 12, operation 345")
	}
	require.Equal(t, "zeroes", identify(make([]byte, 512), 0))
	fill(whole, stamp{worker: garbage, file: 99}, 0)
	require.Contains(t, identify(whole, 0), "free space")
	require.Contains(t, identify([]byte{1, 2, 3}, 0), "no worker")
}
