package cufiletest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// writer is a program that writes as it is told, line by line.
type writer struct {
	t     *testing.T
	in    *bufio.Writer
	lines *bufio.Reader
	errs  bytes.Buffer
}

func newWriter(t *testing.T, file string) *writer {
	t.Helper()
	test, dir := besideCUDA(t, "testsync", "-rdynamic")
	w := &writer{t: t}
	cmd := exec.Command(test, file)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_REAL_CUFILE=")
	cmd.Stderr = &w.errs
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait(), "%s", &w.errs)
	})
	w.in, w.lines = bufio.NewWriter(in), bufio.NewReader(out)
	return w
}

func (w *writer) write(flags, how string, off int64, b byte) string {
	w.t.Helper()
	fmt.Fprintln(w.in, flags, how, off, b)
	require.NoError(w.t, w.in.Flush())
	line, err := w.lines.ReadString('\n')
	require.NoError(w.t, err, "%s", &w.errs)
	return strings.TrimSpace(line)
}

// ways are those in which cuFile's interface writes.
var ways = []string{"call", "batch", "single", "stream"}

// TestSync: what was written to a descriptor of O_DSYNC or O_SYNC is durable when the write has ended, in whatever way: it is in the image that a power cut would
// leave, after a flush.
func TestSync(t *testing.T) {
	const n, size = 9000, 1 * mib
	m := sharetest.New(t, 32*mib, 16*mib)
	f := m.Write("file", make([]byte, size))
	require.NoError(t, f.Close())
	var flushes atomic.Int64
	m.Fail(func(q *blockdev.Request) bool {
		if q.Op == blockdev.OpFlush {
			flushes.Add(1)
		}
		return false
	})
	w := newWriter(t, f.Name())
	old := time.Unix(1e9, 0)
	b, end := byte(0), int64(size)
	for _, flags := range []string{"dsync", "sync", "direct"} {
		for _, how := range ways {
			for _, off := range []int64{12345, end} { // what is there, and what is not
				what := fmt.Sprintf("%s, %s, at %d", flags, how, off)
				b++
				require.NoError(t, os.Chtimes(f.Name(), old, old))
				fd, err := os.Open(f.Name())
				require.NoError(t, err)
				require.NoError(t, fd.Sync())
				require.NoError(t, fd.Close())
				before := flushes.Load()
				require.Equal(t, "9000", w.write(flags, how, off, b), what)
				require.Greater(t, flushes.Load(), before, what)
				got, inode := afterCut(t, m.Image)
				require.Equal(t, max(end, off+n), int64(len(got)), what)
				require.Equal(t, bytes.Repeat([]byte{b}, n), got[off:off+n], what)
				if flags == "sync" { // its times, too
					require.NotContains(t, inode, "mtime: 0x3b9aca00", what)
				}
				end = int64(len(got))
			}
		}
	}
	for _, how := range ways { // where that cannot be the write fails
		want := "-1"
		if how == "batch" || how == "single" {
			want = "-5"
		}
		require.Equal(t, want, w.write("fails", how, 0, 1), how)
	}
}

// afterCut is the file, and what debugfs says of it, in an image as a power cut leaves it, after replay of its journal.
func afterCut(t *testing.T, image string) (content []byte, inode string) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(image), "cut-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	cut, out := filepath.Join(dir, "image"), filepath.Join(dir, "file")
	run(t, "cp", "--sparse=always", image, cut)
	if said, err := exec.Command("e2fsck", "-fy", cut).CombinedOutput(); err != nil {
		require.LessOrEqual(t, err.(*exec.ExitError).ExitCode(), 1, "%s", said)
	}
	run(t, "debugfs", "-R", "dump /file "+out, cut)
	content, err = os.ReadFile(out)
	require.NoError(t, err)
	return content, run(t, "debugfs", "-R", "stat /file", cut)
}
