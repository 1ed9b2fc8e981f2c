package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// during holds back requests that match f while slow runs, and requires that work ends meanwhile. The timeouts measure no speed: a
// failure is a wait for ever.
func during(t *testing.T, dev *blockdev.TestDevice, f blockdev.Fault, slow, work func() error) {
	t.Helper()
	held, release := dev.Hold(f)
	t.Cleanup(release) // before the mount goes
	result, worked := make(chan error, 1), make(chan error, 1)
	go func() { result <- slow() }()
	select {
	case <-held:
	case err := <-result:
		require.FailNow(t, "ended without the device", "%v", err)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "does not get to the device")
	}
	go func() { worked <- work() }()
	select {
	case err := <-worked:
		require.NoError(t, err)
	case <-time.After(2 * time.Minute):
		release() // so that the mount can be unmounted
		<-worked
		require.FailNow(t, "waits for what it must not wait for")
	}
	require.Empty(t, result, "did not wait for the device")
	release()
	require.NoError(t, <-result)
}

const waitingSize = 1 << 20

// waitingFiles are two files whose bytes are on the volume, and not in the kernel's cache.
func waitingFiles(t *testing.T, m *mounted) (a, b *os.File) {
	t.Helper()
	for i, f := range []**os.File{&a, &b} {
		var err error
		*f, err = os.OpenFile(m.path(fmt.Sprint("file", i)), os.O_RDWR|os.O_CREATE, 0o644)
		require.NoError(t, err)
		t.Cleanup(func() { (*f).Close() })
		_, err = (*f).Write(bytes.Repeat([]byte{'a' + byte(i)}, waitingSize))
		require.NoError(t, err)
		require.NoError(t, (*f).Sync())
		require.NoError(t, unix.Fadvise(int((*f).Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	return a, b
}

// readWhole reads f from the volume.
func readWhole(dev *blockdev.TestDevice, f *os.File, want byte) error {
	read := make(chan struct{}, 1)
	dev.Observe(func(e blockdev.Event) {
		if e.Op == blockdev.OpRead {
			select {
			case read <- struct{}{}:
			default:
			}
		}
	})
	defer dev.Observe(nil)
	got, err := io.ReadAll(io.NewSectionReader(f, 0, waitingSize))
	if err == nil && !bytes.Equal(got, bytes.Repeat([]byte{want}, waitingSize)) {
		err = fmt.Errorf("%s has other bytes", f.Name())
	}
	if err == nil && len(read) == 0 {
		err = fmt.Errorf("%s was read without the device", f.Name())
	}
	return err
}

// others are requests that an fsync or write of another file must not delay.
func others(m *mounted, f *os.File, want byte) error {
	if err := readWhole(m.dev, f, want); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("in place"), 0); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("behind a hole"), 4*waitingSize); err != nil {
		return err
	}
	if err := f.Truncate(waitingSize / 2); err != nil {
		return err
	}
	if err := os.WriteFile(m.path("new"), []byte("new"), 0o644); err != nil {
		return err
	}
	return os.Remove(m.path("new"))
}

// TestFsyncDelaysNoOther makes an fsync of one file wait for the device, and works on another file meanwhile.
func TestFsyncDelaysNoOther(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		a, b := waitingFiles(t, m)
		during(t, m.dev, blockdev.Fault{Op: blockdev.OpFlush}, func() error {
			if _, err := a.WriteAt([]byte("more"), waitingSize); err != nil {
				return err
			}
			return a.Sync()
		}, func() error {
			if _, err := os.ReadDir(m.dir); err != nil {
				return err
			}
			return others(m, b, 'b')
		})
	})
}

// TestOverwriteDelaysNoOther makes a write to allocated blocks wait for the device, and works on another file meanwhile.
func TestOverwriteDelaysNoOther(t *testing.T) {
	m := newMount(t, Options{})
	a, b := waitingFiles(t, m)
	during(t, m.dev, blockdev.Fault{Op: blockdev.OpWrite, Times: 1}, func() error {
		_, err := a.WriteAt(bytes.Repeat([]byte{'A'}, 64<<10), 4096)
		return err
	}, func() error { return others(m, b, 'b') })
}

// TestUnmountWhileReadingAhead makes the device hold read-ahead, and unmounts meanwhile.
func TestUnmountWhileReadingAhead(t *testing.T) {
	var log logLines
	m := newMount(t, Options{Log: log.logger()})
	a, b := waitingFiles(t, m)
	during(t, m.dev, blockdev.Fault{Op: blockdev.OpRead}, func() error {
		if err := unix.Fadvise(int(a.Fd()), 0, waitingSize, unix.FADV_WILLNEED); err != nil {
			return err
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			return err
		}
		return m.srv.Unmount()
	}, func() error {
		for ; ; time.Sleep(10 * time.Millisecond) {
			if at, err := MountedAt(m.dir); at == nil || err != nil {
				return err
			}
		}
	})
	require.Empty(t, log.lines)
}
