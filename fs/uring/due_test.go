package uring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/iouring"
)

// TestDue: while a thread has been given a completion that it has not reaped, and may have been kept from running since, somebody waits for it.
func TestDue(t *testing.T) {
	ring, err := newRing(commands)
	if err != nil {
		t.Skip(err)
	}
	defer ring.Close()
	s := &server{ring: ring}
	waits := func() (n int) {
		for _, q := range s.due().Queues {
			if *q.Head != *q.Tail {
				n++
			}
		}
		return n
	}
	require.Zero(t, waits())
	ring.Next().Opcode = iouring.OpNop
	ring.Publish()
	require.Equal(t, 1, waits())
	require.NoError(t, ring.Enter(true))
	require.True(t, ring.Ready())
	require.Equal(t, 1, waits())
	_, ok := ring.Reap()
	require.True(t, ok)
	require.Zero(t, waits())
	require.NotNil(t, s.due().Word)
}
