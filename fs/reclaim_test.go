package fs

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// TestReclaim: on a full volume a program that has just removed a file can create another, although FORGET of
// the first comes later. First one directly after the other, then with the first file open for a while.
func TestReclaim(t *testing.T) {
	m := newMount(t, Options{patience: 5 * time.Minute}, "-N", "200", "-O", "^resize_inode")
	full := func() error {
		for i := 0; ; i++ {
			f, err := os.OpenFile(m.path(fmt.Sprint("f", i)), os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
	}
	require.ErrorIs(t, full(), unix.ENOSPC)
	for range 50 {
		require.NoError(t, os.Remove(m.path("f0")))
		require.NoError(t, os.WriteFile(m.path("f0"), nil, 0o600))
		require.NoError(t, os.Remove(m.path("f0")))
		require.NoError(t, os.Mkdir(m.path("f0"), 0o700))
	}
	f, err := os.Open(m.path("f1"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Remove(m.path("f1")))
	made := make(chan error, 1)
	go func() { made <- os.WriteFile(m.path("f1"), nil, 0o600) }()
	select {
	case err := <-made:
		require.NoError(t, err)
		t.Fatal("one inode more than the volume has")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, f.Close())
	require.NoError(t, <-made)
}

// TestReclaimInVain: a request waits for a file that stays open once only.
func TestReclaimInVain(t *testing.T) {
	m := newMount(t, Options{patience: time.Millisecond}, "-N", "200", "-O", "^resize_inode")
	require.NoError(t, os.WriteFile(m.path("open"), nil, 0o600))
	f, err := os.Open(m.path("open"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(m.path("open")))
	for i := 0; err == nil; i++ {
		err = os.Mkdir(m.path(fmt.Sprint(i)), 0o700)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Empty(t, m.srv.nodes.awaited())
	require.NoError(t, f.Close())
}

// TestReclaimDelaysNoOther has a write wait for the device, and finds the volume full meanwhile.
func TestReclaimDelaysNoOther(t *testing.T) {
	m := newMount(t, Options{patience: time.Millisecond}, "-N", "200", "-O", "^resize_inode")
	f, err := os.Create(m.path("busy"))
	require.NoError(t, err)
	defer f.Close()
	for i := 0; err == nil; i++ {
		err = os.Mkdir(m.path(fmt.Sprint(i)), 0o700)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	during(t, m.dev, blockdev.Fault{Op: blockdev.OpWrite, Times: 1}, func() error {
		_, err := f.Write(make([]byte, 64<<10))
		return err
	}, func() error {
		if err := os.Mkdir(m.path("more"), 0o700); !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("mkdir: %w", err)
		}
		return nil
	})
}

// TestReclaimForExternal: what is written without the kernel on a full volume finds the blocks of a file that has just been removed, as read(2)'s and write(2)'s programs do:
// when a program that has it open closes it, when its FORGET is on its way, and also for the part that there was no room for.
func TestReclaimForExternal(t *testing.T) {
	const size = 4 << 20
	m := newMount(t, Options{patience: 5 * time.Minute})
	full := func(path string) {
		t.Helper()
		f, err := os.Create(path)
		require.NoError(t, err)
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 64<<10))
		}
		require.ErrorIs(t, err, unix.ENOSPC)
	}
	large := m.path("large")
	require.NoError(t, os.WriteFile(large, make([]byte, size), 0o600))
	write(t, m.path("target"), "")
	ext, mem := externalWriter(t, m, m.path("target"), size)
	full(m.path("rest"))
	store := func(off, n int) error {
		ts := []ext4.Transfer{{Off: int64(off), N: n, Mem: mem}}
		ext.WriteAll(ts)
		if ts[0].Err == nil && ts[0].Done != n {
			return fmt.Errorf("%d bytes", ts[0].Done)
		}
		return ts[0].Err
	}
	for round := range 20 {
		require.NoError(t, os.Remove(large))
		require.NoError(t, store(0, size-128<<10), "round %d", round) // 128 KiB are left for names and the like
		require.NoError(t, os.Truncate(m.path("target"), 0))
		require.NoError(t, os.WriteFile(large, make([]byte, size-128<<10), 0o600))
		full(m.path("rest2"))
		require.NoError(t, os.Truncate(m.path("rest2"), 0))
	}
	for _, room := range []int64{0, 1 << 20} { // for a part of what is written
		f, err := os.Open(large)
		require.NoError(t, err)
		full(m.path("rest2"))
		if room > 0 {
			require.NoError(t, os.Truncate(m.path("rest"), stat(t, m.path("rest")).Size-room))
		}
		require.NoError(t, os.Remove(large))
		stored := make(chan error, 1)
		go func() { stored <- store(0, size-128<<10) }()
		select {
		case err := <-stored:
			require.NoError(t, f.Close())
			require.NoError(t, err)
			t.Fatal("more blocks than the volume has")
		case <-time.After(100 * time.Millisecond):
		}
		require.NoError(t, f.Close())
		require.NoError(t, <-stored)
		require.NoError(t, os.Truncate(m.path("target"), 0))
		require.NoError(t, os.WriteFile(large, make([]byte, size-128<<10), 0o600))
	}
}
