package fs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFindFusermount: fusermount3 is found where it is installed, also by a process that has no PATH, as a helper of umount(8) has none for an
// ordinary user; what is in PATH comes first.
func TestFindFusermount(t *testing.T) {
	if _, err := os.Stat("/usr/bin/fusermount3"); err != nil {
		t.Skipf("needs fusermount3 in /usr/bin: %v", err)
	}
	for _, path := range []string{"", "/nonexistent"} {
		t.Setenv("PATH", path)
		bin, err := findFusermount()
		require.NoError(t, err, "PATH=%q", path)
		require.Equal(t, "fusermount3", bin[len(bin)-len("fusermount3"):])
	}
	first := t.TempDir()
	require.NoError(t, os.WriteFile(first+"/fusermount3", []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", first)
	bin, err := findFusermount()
	require.NoError(t, err)
	require.Equal(t, first+"/fusermount3", bin)
}
