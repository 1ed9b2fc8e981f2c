package calls

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFollow: the last call is known while somebody follows, each call counts, and what was called before is forgotten.
func TestFollow(t *testing.T) {
	Begins("before")
	last, end := Follow()
	name, was := last()
	require.Empty(t, name)
	require.Zero(t, was)
	for range 3 {
		Begins("cuInit")
		name, now := last()
		require.Equal(t, "cuInit", name)
		require.NotEqual(t, was, now)
		was = now
	}
	end()
	Begins("after")
	name, _ = last()
	require.Equal(t, "cuInit", name)
	last, end = Follow()
	name, _ = last()
	require.Empty(t, name)
	end()
}
