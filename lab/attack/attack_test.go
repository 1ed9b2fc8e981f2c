package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// TestMain: the attackers are this program again.
func TestMain(m *testing.M) {
	if v := os.Getenv(attackerEnv); v != "" {
		attacker(v)
		return
	}
	if v := os.Getenv(greedyEnv); v != "" {
		greedy(v)
		return
	}
	os.Exit(m.Run())
}

func needs(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, to attack as another user")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("SKIPPED: needs FUSE: /dev/fuse: %v", err)
	}
	unix.Close(fd)
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: needs %s: make deps installs it", tool)
		}
	}
}

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lanefs")
	require.NoError(t, drive.Build(path))
	return path
}

// seedOf returns the seed of all random tests of a run, 1 if there is none.
func seedOf() int64 {
	if n, err := strconv.ParseInt(os.Getenv("LANEFS_SEED"), 10, 64); err == nil {
		return n
	}
	return 1
}

// TestAttack runs three rounds, one with each end: two unmounts, and a daemon killed under attack. Each ends after so many steps, of which an idle machine does 3,500 a second, or after
// its time on a busy one. The bound only detects hangs.
func TestAttack(t *testing.T) {
	needs(t)
	require.NoError(t, run(config{Rounds: 3, Steps: 10_000, Bound: bound, Attackers: 4, Seed: seedOf(), IOUring: "auto", Lanefs: build(t), Say: t.Logf}))
}
