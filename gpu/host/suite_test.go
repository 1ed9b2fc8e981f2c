package host

import (
	"testing"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/stretchr/testify/require"
)

func open(t testing.TB) gpu.Runtime {
	r, err := Open(Options{})
	require.NoError(t, err)
	return r
}

func TestRuntime(t *testing.T) { gputest.Runtime(t, open) }
