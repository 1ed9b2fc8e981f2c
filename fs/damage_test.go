package fs

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// logLines keeps the lines of a log.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logLines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// TestReadError: a read that the device fails is EIO for its reader, one line in the log, and no more than that.
func TestReadError(t *testing.T) {
	var log logLines
	m := newMount(t, Options{Log: log.logger()})
	write(t, m.path("file"), "unreadable")
	write(t, m.path("other"), "readable")
	dropPages(t, m.path("file"))
	remove := m.dev.Inject(blockdev.Fault{Op: blockdev.OpRead})
	for range 3 {
		_, err := os.ReadFile(m.path("file"))
		require.ErrorIs(t, err, unix.EIO)
	}
	remove()
	require.Equal(t, 1, log.with("injected fault"), "%q", log.lines)
	require.Equal(t, "unreadable", read(t, m.path("file")))
	write(t, m.path("other"), "writing goes on")
}

func dropPages(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// TestDamage: metadata that is not what it should be is EUCLEAN, and from then on the volume takes no more changes.
func TestDamage(t *testing.T) {
	needFuse(t)
	needTool(t, "debugfs")
	v := newVolume(t)
	dir := t.TempDir()
	var log logLines
	mount := func() *Server {
		s, err := Mount(dir, v.vol, Options{Log: log.logger()})
		require.NoError(t, err)
		t.Cleanup(func() { Detach(dir) })
		return s
	}
	s := mount()
	write(t, dir+"/good", "good")
	write(t, dir+"/bad", "bad")
	require.NoError(t, s.Unmount())
	v.close()

	out, err := exec.Command("debugfs", "-R", "imap /bad", v.path).Output()
	require.NoError(t, err)
	var ino, group, block, offset int64
	_, err = fmt.Sscanf(string(out), "Inode %d is part of block group %d\n\tlocated at block %d, offset 0x%x", &ino, &group, &block, &offset)
	require.NoError(t, err, "%q", out)
	image, err := os.OpenFile(v.path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer image.Close()
	// i_mtime: nothing but the checksum tells.
	at := block*int64(v.vol.BlockSize()) + offset + 0x10
	b := make([]byte, 1)
	_, err = image.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 0xff
	_, err = image.WriteAt(b, at)
	require.NoError(t, err)

	v.open()
	s = mount()
	_, err = os.Stat(dir + "/bad")
	require.ErrorIs(t, err, unix.EUCLEAN)
	_, err = os.Stat(dir + "/bad")
	require.ErrorIs(t, err, unix.EUCLEAN)
	require.Equal(t, "good", read(t, dir+"/good"))
	require.ErrorIs(t, os.WriteFile(dir+"/new", nil, 0o644), unix.EROFS)
	require.ErrorIs(t, os.Remove(dir+"/good"), unix.EROFS)
	_, err = os.OpenFile(dir+"/good", os.O_RDWR, 0) // the kernel takes the mount for writable
	require.ErrorIs(t, err, unix.EROFS)
	require.Equal(t, 1, log.with("lookup"), "%q", log.lines)
	require.NoError(t, s.Unmount())
	v.vol.Close() // what it says is package ext4's business
	require.NoError(t, v.dev.Close())
}
