package media

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/lab/faultfs"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

const (
	imageSize = 48 << 20
	patience  = 2 * time.Minute // far more than anything here needs: an event that takes longer does not come
	goesOn    = 300 * time.Millisecond
)

// bench is one image on a medium that fails, its mount, and its writers.
type bench struct {
	t       *testing.T
	bin     string
	options string
	dir     string
	mnt     string
	backing string // the image, below the medium
	medium  *faultfs.FS
	logs    int
	kill    func() // kills the daemon and detaches the mount

	writers []*writer
	stop    chan struct{}
	done    sync.WaitGroup
}

// build makes the binary.
func build(t *testing.T) string {
	t.Helper()
	if fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0); err != nil {
		t.Skipf("needs FUSE: /dev/fuse: %v", err)
	} else {
		unix.Close(fd)
	}
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "debugfs", "fusermount3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	bin := filepath.Join(t.TempDir(), "lanefs")
	require.NoError(t, drive.Build(bin))
	return bin
}

// newBench mounts the medium, with an image; mkfs are more options of mkfs.ext4.
func newBench(t *testing.T, bin, options string, mkfs ...string) *bench {
	t.Helper()
	dir, err := os.MkdirTemp(drive.Memory(), "lanefs-media-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bench{t: t, bin: bin, options: options, dir: dir, mnt: filepath.Join(dir, "mnt"), backing: filepath.Join(dir, "back", "image")}
	for _, d := range []string{"mnt", "back", "medium"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	require.NoError(t, os.WriteFile(b.backing, nil, 0o600))
	require.NoError(t, os.Truncate(b.backing, imageSize))
	b.tool(0, "mkfs.ext4", append([]string{"-q", "-F", "-b", "4096", "-J", "size=4", b.backing}, mkfs...)...)
	b.medium, err = faultfs.Mount(filepath.Join(dir, "medium"), filepath.Dir(b.backing))
	if err != nil {
		t.Skipf("needs a mount of FUSE: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, b.medium.Close()) })
	t.Cleanup(func() { fs.Detach(b.mnt) })
	return b
}

// tool runs a program, whose exit status must be at most most.
func (b *bench) tool(most int, name string, args ...string) string {
	b.t.Helper()
	c := exec.Command(name, args...)
	out, _ := c.CombinedOutput()
	require.LessOrEqual(b.t, uint(c.ProcessState.ExitCode()), uint(most), "%s %q:\n%s", name, args, out)
	return string(out)
}

func (b *bench) lanefs(args ...string) (string, error) {
	c := exec.Command(b.bin, args...)
	c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+b.dir)
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (b *bench) logPath() string { return filepath.Join(b.dir, fmt.Sprint("log", b.logs)) }

func (b *bench) log() string {
	text, err := os.ReadFile(b.logPath())
	require.NoError(b.t, err)
	return string(text)
}

// daemon begins a mount in the foreground: the daemon dies with this process, or with the test.
func (b *bench) daemon(args ...string) *drive.Daemon {
	b.t.Helper()
	b.logs++
	d, err := drive.Serve(b.bin, b.dir, b.logPath(), args...)
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		b.medium.Clear()
		d.Kill()
	})
	return d
}

// serve mounts image at mnt.
func (b *bench) serve(image, options string) {
	t := b.t
	t.Helper()
	d := b.daemon("-o", options, image, b.mnt)
	b.kill = func() {
		d.Kill()
		fs.Detach(b.mnt)
	}
	b.await("the mount", func() bool {
		m, err := fs.MountedAt(b.mnt)
		var st unix.Statfs_t
		if err == nil && m != nil && unix.Statfs(b.mnt, &st) == nil {
			out, err := b.lanefs("stat", b.mnt)
			return err == nil && strings.Contains(out, "daemon")
		}
		select {
		case <-d.Ended:
			require.FailNow(t, "the daemon has ended", "%s", b.log())
		default:
		}
		return false
	})
}

func (b *bench) mount() {
	b.serve(filepath.Join(b.medium.Dir(), "image"), b.options)
}

// await waits until is returns true.
func (b *bench) await(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(b.t, "does not happen", "%s\n%s", what, b.log())
		}
	}
}

func (b *bench) start(rng *rand.Rand) {
	b.writers, b.stop = newWriters(), make(chan struct{})
	for _, w := range b.writers {
		dir := filepath.Join(b.mnt, w.name)
		require.NoError(b.t, os.Mkdir(dir, 0o755))
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		b.done.Go(func() { w.work(dir, own, b.stop) })
	}
}

func (b *bench) awaitAcks(w *writer, n int) {
	b.await(w.name, func() bool { acks, refused := w.count(); return acks >= n || refused > 0 })
}

// finish lets the writers go on until they have met the failure, if m says that they must, and a while after it, and waits for them.
func (b *bench) finish(m medium) {
	b.t.Helper()
	if m.sticky {
		b.awaitError()
	}
	if m.full {
		b.await("the log's line", func() bool { return strings.Contains(b.log(), m.says) })
	}
	time.Sleep(goesOn)
	close(b.stop)
	b.done.Wait()
}

func (b *bench) acked() (n int) {
	for _, w := range b.writers {
		acks, _ := w.count()
		n += acks
	}
	return n
}

// firstErrors lists the first error of each writer.
func (b *bench) firstErrors() string {
	var s bytes.Buffer
	for _, w := range b.writers {
		if len(w.refused) > 0 {
			fmt.Fprintf(&s, "%s: %v; ", w.name, w.refused[0])
		}
	}
	return s.String()
}

// cut truncates the image, or makes it longer.
func (b *bench) cut(size int64) {
	require.NoError(b.t, os.Truncate(filepath.Join(b.medium.Dir(), "image"), size))
}

// settle makes the medium work again and waits until the daemon has closed the image, whose cached pages are dropped then.
func (b *bench) settle() {
	b.medium.Clear()
	b.await("the end of the mount", func() bool { m, err := fs.MountedAt(b.mnt); return err == nil && m == nil })
	b.await("the image is closed", func() bool { return b.medium.Open() == 0 })
}

// awaitError waits until a writer got an error.
func (b *bench) awaitError() {
	b.await("an error of a writer", func() bool {
		for _, w := range b.writers {
			if _, refused := w.count(); refused > 0 {
				return true
			}
		}
		return false
	})
}
