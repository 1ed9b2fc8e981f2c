package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func logged(t testing.TB, log string) string {
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	return string(b)
}

// sector is where a file's first byte lies, in units of 512 bytes, by the kernel's ext4 with blocks of 4096.
func sector(t testing.TB, path string) int64 {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()

	block, err := fibmap(f, 0)
	require.NoError(t, err)
	require.NotZero(t, block)
	return int64(block) * 8
}

// A medium that fails in two places: programs get EIO, the log has the NVMe status, and the rest of the volume keeps working.
func TestMediumErrors(t *testing.T) {
	content := pattern(64<<10, 3)
	var reads, writes int64
	t.Run("prepare", func(t *testing.T) {
		dev := disk(t, plug(t, medium(t, 7), nil))
		mkfs(t, dev)
		kernelMount(t, dev, func(dir string) {
			for _, name := range []string{"unreadable", "unwritable", "good"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
			}
			unix.Sync()
			reads, writes = sector(t, filepath.Join(dir, "unreadable")), sector(t, filepath.Join(dir, "unwritable"))
		})
	})
	if t.Failed() {
		return
	}
	addr := plug(t, medium(t, 7, map[string]any{"driver": "blkdebug", "inject-error": []any{
		map[string]any{"event": "none", "iotype": "read", "sector": reads, "errno": 5, "once": false},
		map[string]any{"event": "none", "iotype": "write", "sector": writes, "errno": 5, "once": false},
	}}), nil)
	bound(t, addr)
	dir, log := mountLogged(t, addr)

	_, err := os.ReadFile(filepath.Join(dir, "unreadable"))
	require.ErrorIs(t, err, unix.EIO)
	require.Contains(t, logged(t, log), "Unrecovered Read Error")

	f, err := os.OpenFile(filepath.Join(dir, "unwritable"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(content[:4096], 0)
	wrote, synced, closed := err, f.Sync(), f.Close()
	t.Logf("write: %v; fsync: %v; close: %v", wrote, synced, closed)
	require.ErrorIs(t, errors.Join(wrote, synced), unix.EIO, "fsync hides that the data is not on the medium")
	require.Contains(t, logged(t, log), "Write Fault")

	got, err := os.ReadFile(filepath.Join(dir, "good"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
	lanefs(t, "umount", dir)
}

// A medium whose flushes fail from some moment on: the fsync that meets it fails, no later one hides it, and what fsync promised before is
// there when the medium works again.
func TestFlushErrors(t *testing.T) {
	t.Run("prepare", func(t *testing.T) { mkfs(t, disk(t, plug(t, medium(t, 7), nil))) })
	var promised int
	content := pattern(20<<10, 8)
	t.Run("failing", func(t *testing.T) {
		// blkdebug counts writes by its states. A mount makes fewer.
		const writes = 60
		var count []any
		for i := 1; i <= writes; i++ {
			count = append(count, map[string]any{"event": "pwritev", "state": i, "new_state": i + 1})
		}
		addr := plug(t, medium(t, 7, map[string]any{"driver": "blkdebug", "set-state": count, "inject-error": []any{
			map[string]any{"event": "pwritev", "iotype": "flush", "state": writes + 1, "errno": 5, "once": false},
		}}), nil)
		bound(t, addr)
		dir, log := mountLogged(t, addr)
		save := func(i int) error {
			f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
			if err != nil {
				return err
			}
			_, err = f.Write(content)
			return errors.Join(err, f.Sync(), f.Close())
		}
		var err error
		for ; err == nil; promised++ {
			require.Less(t, promised, 10*writes, "no flush has failed")
			err = save(promised)
		}
		promised--
		t.Logf("%d files, then: %v", promised, err)
		require.ErrorIs(t, err, unix.EIO)
		require.NotZero(t, promised)
		require.Error(t, save(promised), "a later fsync hides it")
		require.Contains(t, logged(t, log), "Flush of namespace 1")
		_, err = run("lanefs", "umount", dir)
		require.Error(t, err)
	})
	if t.Failed() {
		return
	}
	dev := disk(t, plug(t, medium(t, 7), nil))
	kernelMount(t, dev, func(dir string) {
		for i := range promised {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, got), "file %d of %d", i, promised)
		}
	})
	fsck(t, dev)
}

// busyPiece is what busy writes at a time, and then makes durable.
const busyPiece = 128 << 10

func busyPattern() []byte { return pattern(busyPiece, 9) }

// busy starts a program that writes to a mount until a write fails or it is stopped.
func busy(dir string) *writer {
	w := &writer{make(chan struct{}), make(chan error, 1)}
	go func() {
		b := busyPattern()
		f, err := os.Create(filepath.Join(dir, "busy"))
		for i := 0; err == nil; i++ {
			select {
			case <-w.quit:
				w.result <- f.Close()
				return
			default:
			}
			if _, err = f.WriteAt(b, int64(i%64)*int64(len(b))); err == nil {
				err = f.Sync()
			}
		}
		if f != nil {
			f.Close()
		}
		w.result <- err
	}()
	return w
}

// writer is a program that busy has started.
type writer struct {
	quit   chan struct{}
	result chan error
}

// stop ends it. The error is its own.
func (w *writer) stop() error {
	close(w.quit)
	return <-w.result
}

// fails is the error that ends it, since there is no device any more.
func (w *writer) fails(t *testing.T) {
	t.Helper()
	var err error
	select {
	case err = <-w.result:
	case <-time.After(time.Minute):
		close(w.quit)
		t.Fatal("writes go on without a device")
	}
	require.True(t, errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS), "%v", err)
}

// The controller is unplugged while a program writes. The guest's kernel gets the function back at once; programs get errors;
// the mount can be unmounted, and its daemon ends.
func TestUnplugWhileBusy(t *testing.T) { unplugWhileBusy(t) }

// The same with lanes of a GPU's runtime: their kernel has left, and the registration of the doorbells has ended, before the kernel gets the
// function back.
func TestUnplugWhileBusyGPU(t *testing.T) {
	ended := filepath.Join(t.TempDir(), "ended")
	standIn(t, "LANEFS_SHIM_ENDED", ended)
	log := unplugWhileBusy(t, "--gpu", "hip", "-o", "lanes=2,doorbell=iomem,memory-mode=0")
	said, err := os.ReadFile(ended)
	require.NoError(t, err)
	require.Equal(t, "a device's\n", string(said), "when the registration ends its addresses are the function's still")
	require.NotContains(t, log, "the kernel does not get the device back")
}

// unplugWhileBusy returns the daemon's log.
func unplugWhileBusy(t *testing.T, options ...string) string {
	t.Helper()
	addr := plug(t, medium(t, 7), nil)
	mkfs(t, disk(t, addr))
	lanefs(t, "bind", addr)
	dir, log := mountLogged(t, addr, options...)
	program := busy(dir)
	time.Sleep(time.Second)
	unplug(t)
	program.fails(t)
	require.Contains(t, logged(t, log), "the kernel asks for the device")
	_, err := os.ReadDir(dir)
	t.Logf("reading the root afterwards: %v", err)

	endsWithoutDevice(t, dir, log)
	return logged(t, log)
}

// daemons are the processes of lanefs.
func daemons() (pids []string) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, c := range comms {
		if b, _ := os.ReadFile(c); strings.TrimSpace(string(b)) == "lanefs" {
			pids = append(pids, filepath.Base(filepath.Dir(c)))
		}
	}
	return pids
}

// The function is reset through sysfs while the daemon uses it. The daemon enables the controller again and repeats commands.
func TestResetWhileBusy(t *testing.T) {
	skipOthers(t, 1)
	dev := disk(t, nvme0)
	mkfs(t, dev)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		dir, log := mountLogged(t, nvme0)
		program := busy(dir)
		time.Sleep(time.Second)
		require.NoError(t, os.WriteFile("/sys/bus/pci/devices/"+nvme0+"/reset", []byte("1"), 0))
		time.Sleep(time.Second)
		err := program.stop()
		t.Logf("the writer: %v", err)
		require.True(t, err == nil || errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS), "%v", err)
		require.Contains(t, logged(t, log), "resetting the controller")
		_, err = run("lanefs", "umount", dir)
		t.Logf("umount: %v", err)
		mounts, _ := os.ReadFile("/proc/self/mounts")
		require.NotContains(t, string(mounts), dir)
	})
	// The kernel replays what LaneFS committed.
	dev = disk(t, nvme0)
	kernelMount(t, dev, func(string) {})
	fsck(t, dev)
}

// The daemon is killed: the function is free again, the journal is recovered, and what fsync acknowledged is there.
func TestKill(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev)
	promised := pattern(300<<10, 5)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		dir := mount(t, nvme0)
		f, err := os.Create(filepath.Join(dir, "promised"))
		require.NoError(t, err)
		_, err = f.Write(promised)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, os.WriteFile(filepath.Join(dir, "not"), promised, 0o644))
		pids := daemons()
		require.Len(t, pids, 1)
		must(t, "kill", "-9", pids[0])
		f.Close()
		require.Eventually(t, func() bool { return len(daemons()) == 0 }, 3*time.Minute, 50*time.Millisecond)
		lanefs(t, "umount", dir)

		dir = mount(t, nvme0)
		got, err := os.ReadFile(filepath.Join(dir, "promised"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(promised, got))
		lanefs(t, "umount", dir)
	})
	dev = disk(t, nvme0)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		got, err := os.ReadFile(filepath.Join(dir, "promised"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(promised, got))
	})
}
