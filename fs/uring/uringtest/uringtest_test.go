package uringtest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLockInTurn: who has freed the lock and wants it again gets it after who waited meanwhile.
func TestLockInTurn(t *testing.T) {
	dir := t.TempDir()
	free, err := lock(dir)
	require.NoError(t, err)
	had := make(chan string, 2)
	want := func(who string) {
		free, err := lock(dir)
		if err != nil {
			who = err.Error()
		} else {
			defer free()
		}
		had <- who
	}
	go want("other")
	waits := func() bool {
		fd, err := unix.Open(filepath.Join(dir, "lanefs-uringtest.queue"), unix.O_RDWR, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
	}
	for !waits() {
		time.Sleep(time.Millisecond)
	}
	free()
	want("again")
	require.Equal(t, "other", <-had)
	require.Equal(t, "again", <-had)
}
