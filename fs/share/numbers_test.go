package share

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestFreeNumbers: nothing gets the number of a handle, or of one that is being released, and a connection has no more of both than there are numbers.
func TestFreeNumbers(t *testing.T) {
	c := &conn{handles: map[uint32]owned{3: {}}, releasing: map[uint32]chan struct{}{1: nil, 5: nil}}
	for range wire.Slots - 4 {
		n, err := c.freeNumber()
		require.NoError(t, err)
		require.NotContains(t, c.handles, n)
		require.NotContains(t, c.releasing, n)
		c.handles[n] = owned{}
	}
	_, err := c.freeNumber()
	require.Error(t, err)
}
