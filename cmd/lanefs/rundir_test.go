package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHostileLocks: what another user has put where daemons are looked for holds nobody up, and fills no memory.
func TestHostileLocks(t *testing.T) {
	p := newPlace(t)
	at := func(name string) string { return filepath.Join(p.dir, name+lockEnd) }
	good, err := os.Create(at("good"))
	require.NoError(t, err)
	defer good.Close()
	require.NoError(t, unix.Flock(int(good.Fd()), unix.LOCK_EX))
	_, err = good.WriteString(`{"pid":1,"device":"/dev/x","dir":"/mnt"}` + "\n")
	require.NoError(t, err)
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.Mkdir(at("directory"), 0o700))
	require.NoError(t, os.Symlink("/dev/zero", at("endless")))
	require.NoError(t, os.Symlink(at("good"), at("link")))
	require.NoError(t, os.Symlink(at("loop"), at("loop")))
	require.NoError(t, os.WriteFile(at("large"), []byte(" "), 0o600))
	require.NoError(t, os.Truncate(at("large"), 1<<40))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, name := range []string{"fifo", "directory", "endless", "link", "loop", "large", "none"} {
			if readServed(at(name)) != nil || name != "large" && held(at(name)) {
				t.Errorf("%s is no lock", name)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
	require.Equal(t, &served{PID: 1, Device: "/dev/x", Dir: "/mnt"}, readServed(at("good")))
	require.True(t, held(at("good")))
}
