package ctest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMemory: memory that is not there, may not be used, or is taken away in the middle of a call is EFAULT, and nothing is written then.
func TestMemory(t *testing.T) {
	_, test, file := onFile(t, "testmemory", "gnu11")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "ok\n", run(t, test, file))
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, string(before) == string(after), "the file changed")
}
