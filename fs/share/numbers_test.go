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
		_, taken := c.handles[n]
		_, releasing := c.releasing[n]
		if err != nil || taken || releasing { // not require, which looks at each key of a map: a minute under the race detector
			t.Fatalf("%d: taken %t, releasing %t, %v", n, taken, releasing, err)
		}
		c.handles[n] = owned{}
	}
	_, err := c.freeNumber()
	require.Error(t, err)
}
