package calls

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNotes: the last call of a goroutine is known while notes are taken of it, each call counts, and calls of others do not.
func TestNotes(t *testing.T) {
	Begins("before")
	var n Notes
	name, number := n.Last()
	require.Empty(t, name)
	require.Zero(t, number)
	end := n.take()
	for i := range 3 {
		Begins("cuInit")
		other := make(chan struct{})
		go func() {
			defer close(other)
			Begins("cuStreamQuery")
		}()
		<-other
		name, number = n.Last()
		require.Equal(t, "cuInit", name)
		require.EqualValues(t, i+1, number)
	}
	end()
	Begins("after")
	name, number = n.Last()
	require.Equal(t, "cuInit", name)
	require.EqualValues(t, 3, number)
}
