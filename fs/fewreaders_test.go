package fs

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// TestFewReaders: where there may be no more threads that read /dev/fuse, requests that have the kernel write back dirty pages leave one that
// takes those.
func TestFewReaders(t *testing.T) {
	room := roomForReader
	roomForReader = func() error { return errors.New("none may be made") }
	t.Cleanup(func() { roomForReader = room })
	m := newMount(t, Options{WriteBack: true, IOUring: IOUringOff})
	const size = 64 << 10
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(m.path(fmt.Sprint("file", i)), os.O_RDWR|os.O_CREATE, 0o644)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		_, err = f.Write(make([]byte, size))
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		files[i] = f
	}
	held, release := m.dev.Hold(blockdev.Fault{Op: blockdev.OpWrite})
	t.Cleanup(release)
	var writers errgroup.Group
	for _, f := range files {
		direct, err := unix.Open(f.Name(), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(direct) })
		writers.Go(func() error { return aioWrite(direct, aligned(size), 0) })
		<-held
	}
	for _, f := range files {
		_, err := f.WriteAt(make([]byte, size), 0)
		require.NoError(t, err)
	}
	release()
	written := make(chan error, 1)
	go func() { written <- writers.Wait() }()
	select {
	case err := <-written:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		_ = unix.Unmount(m.dir, unix.MNT_FORCE) // ends the connection
		require.FailNow(t, "nobody takes the writes for which the requests wait")
	}
}
