package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithInterpreter: a script that is python3 makes way for the Python that it starts, and all else stays.
func TestWithInterpreter(t *testing.T) {
	real, shims, none := t.TempDir(), t.TempDir(), t.TempDir()
	// What asks the interpreter where it is gets this answer.
	program := "#!/bin/sh\necho " + filepath.Join(real, "python3") + "\n"
	for _, dir := range []string{real, shims} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "python3"), []byte(program), 0o755))
	}
	t.Setenv("PATH", shims+":/bin")
	require.Equal(t, "PATH="+real+":"+shims+":/bin", withInterpreter(os.Getenv("PATH")))
	t.Setenv("PATH", real+":/bin")
	require.Equal(t, "PATH="+real+":/bin", withInterpreter(os.Getenv("PATH")))
	t.Setenv("PATH", none)
	_, err := exec.LookPath("python3")
	require.Error(t, err)
	require.Equal(t, "PATH="+none, withInterpreter(none))
}
