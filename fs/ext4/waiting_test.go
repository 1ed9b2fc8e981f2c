package ext4_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// within fails the test if f does not end. It is no measure of speed: what waits here waits for ever.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "waits for what it must not wait for", what)
	}
}

// past is a time at which a read is sure to be due for a new access time.
var past = time.Now().Add(-48 * time.Hour)

// stalled is a volume with some files, whose device can be made to hold flushes.
type stalled struct {
	dev   *blockdev.TestDevice
	v     *ext4.FS
	root  *ext4.Inode
	files []*ext4.Inode
}

const stalledSize = 64 << 10

func openStalled(t *testing.T, img string) *stalled {
	t.Helper()
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	// There is a commit only where one is asked for.
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: time.Hour})
	require.NoError(t, err)
	s := &stalled{dev: dev, v: v}
	s.root, err = v.Root()
	require.NoError(t, err)
	for _, name := range []string{"synced", "other", "read"} {
		f, err := s.root.Create(name, unix.S_IFREG|0o600, 0, 0, 0, 0)
		require.NoError(t, err)
		_, err = f.Write(0, make([]byte, stalledSize))
		require.NoError(t, err)
		_, err = f.SetAttr(ext4.SetAttr{Atime: &past})
		require.NoError(t, err)
		s.files = append(s.files, f)
	}
	require.NoError(t, v.Sync())
	return s
}

// stall begins an fsync that does not get past the device. finish lets it go on and waits for it.
func (s *stalled) stall(t *testing.T) (finish func()) {
	t.Helper()
	held, release := s.dev.Hold(blockdev.Fault{Op: blockdev.OpFlush})
	t.Cleanup(release)
	result := make(chan error, 1)
	go func() {
		_, err := s.files[0].Write(stalledSize, []byte("more"))
		if err == nil {
			err = s.files[0].Fsync(false)
		}
		result <- err
	}()
	within(t, "the fsync gets to the device", func() { <-held })
	require.Empty(t, result)
	return func() {
		t.Helper()
		require.Empty(t, result, "fsync did not wait for the device")
		release()
		within(t, "the fsync goes on", func() { require.NoError(t, <-result) })
	}
}

// close unmounts; the access time of "read" must be on the volume then.
func (s *stalled) close(t *testing.T, img string) {
	t.Helper()
	for _, f := range append(s.files, s.root) {
		f.Put()
	}
	within(t, "the volume is closed", func() {
		require.NoError(t, s.v.Close())
		require.NoError(t, s.dev.Close())
	})
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(dir string) {
		st, err := os.Stat(dir + "/read")
		require.NoError(t, err)
		at := time.Unix(st.Sys().(*syscall.Stat_t).Atim.Unix())
		require.Less(t, time.Since(at), 24*time.Hour, "the access time did not get to the volume")
	})
}

// others works on the files that are not held up.
func (s *stalled) others(t *testing.T) {
	other, read := s.files[1], s.files[2]
	_, err := other.Write(0, make([]byte, stalledSize)) // in place
	require.NoError(t, err)
	_, err = other.Write(2*stalledSize, make([]byte, stalledSize)) // behind a hole
	require.NoError(t, err)
	half := int64(stalledSize / 2)
	_, err = other.SetAttr(ext4.SetAttr{Size: &half})
	require.NoError(t, err)
	d, err := read.Read(0, stalledSize)
	require.NoError(t, err)
	require.Len(t, d.Bytes(), stalledSize)
	d.Release()
	require.True(t, read.Attr().Atime.After(past.Add(24*time.Hour)), "the read left no access time")
	f, err := s.root.Create("new", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	f.Put()
	require.NoError(t, s.root.Unlink("new"))
	require.NoError(t, s.root.ReadDir(0, func(ext4.DirEntry) bool { return true }))
}

// TestFsyncHoldsNobodyUp has an fsync wait for a device that does not answer, and does everything else meanwhile.
func TestFsyncHoldsNobodyUp(t *testing.T) {
	img := disktest.Make(t, "16M")
	s := openStalled(t, img)
	finish := s.stall(t)
	within(t, "work on other files", func() { s.others(t) })
	finish()
	s.close(t, img)
}

// TestWriteHoldsNobodyUp has a write wait for the device, to blocks in their place and to new ones, and does everything
// else meanwhile.
func TestWriteHoldsNobodyUp(t *testing.T) {
	for what, off := range map[string]int64{"in place": 0, "appending": stalledSize} {
		t.Run(what, func(t *testing.T) {
			img := disktest.Make(t, "16M")
			s := openStalled(t, img)
			held, release := s.dev.Hold(blockdev.Fault{Op: blockdev.OpWrite, Times: 1})
			t.Cleanup(release)
			written := make(chan error, 1)
			go func() {
				_, err := s.files[0].Write(off, make([]byte, stalledSize))
				written <- err
			}()
			within(t, "the write gets to the device", func() { <-held })
			within(t, "work on other files", func() { s.others(t) })
			require.Empty(t, written, "the write did not wait for the device")
			release()
			within(t, "the write goes on", func() { require.NoError(t, <-written) })
			s.close(t, img)
		})
	}
}

// TestReadNeedsNoRoom has the fsync wait, and the transaction after it full: a change must wait until the
// fsync is done. A read must not, access times or no.
func TestReadNeedsNoRoom(t *testing.T) {
	img := disktest.Make(t, "16M")
	s := openStalled(t, img)
	finish := s.stall(t)
	var full []*jbd2.Handle
	for h := s.v.Volume().Journal.TryBegin(1); h != nil; h = s.v.Volume().Journal.TryBegin(1) {
		full = append(full, h)
	}
	require.NotEmpty(t, full)
	waited := make(chan error, 1)
	go func() {
		_, err := s.files[1].Write(stalledSize, []byte("waits for room"))
		waited <- err
	}()
	read := s.files[2]
	within(t, "reading", func() {
		for range 3 {
			d, err := read.Read(0, stalledSize)
			require.NoError(t, err)
			d.Release()
		}
		require.NoError(t, s.root.ReadDir(0, func(ext4.DirEntry) bool { return true }))
		for s.files[1].Live().Mu.TryLock() { // until the writer is there
			s.files[1].Live().Mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		for _, name := range []string{"other", "read"} { // also of the one that is being written
			f, err := s.root.Lookup(name)
			require.NoError(t, err)
			f.Put()
		}
		st := read.Attr()
		require.EqualValues(t, stalledSize, st.Size)
		require.True(t, read.Attr().Atime.After(past.Add(24*time.Hour)), "the read left no access time")
	})
	require.NotZero(t, read.Live().AccessTime.Load(), "the access time was stored: there was room after all")
	require.Empty(t, waited, "a writer went on without room")
	for _, h := range full {
		require.NoError(t, h.End())
	}
	finish()
	within(t, "the writer goes on", func() { require.NoError(t, <-waited) })
	s.close(t, img)
}

// TestCommitInterval: a change is made durable in time without a call for it.
func TestCommitInterval(t *testing.T) {
	img := disktest.Make(t, "16M")
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	v, err := ext4.Open(dev, ext4.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CommitInterval: 20 * time.Millisecond})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Create("file", unix.S_IFREG|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	_, err = f.Write(0, []byte("content"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return v.Volume().Journal.Committed(f.Live().TID) }, 2*time.Minute, time.Millisecond)

	// The power goes.
	b, err := os.ReadFile(img)
	require.NoError(t, err)
	cut := filepath.Join(t.TempDir(), "cut.img")
	require.NoError(t, os.WriteFile(cut, b, 0o600))
	e2fsck(t, cut, "-fy")
	require.Contains(t, disktest.Debugfs(t, cut, "cat file"), "content")
	f.Put()
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, dev.Close())
	disktest.Fsck(t, img)
}

// TestFdatasync: a file of which nothing changed but bytes in their places, and times, is durable after a flush. fsync, and
// whatever else changed, take a commit.
func TestFdatasync(t *testing.T) {
	img := disktest.Make(t, "16M")
	s := openStalled(t, img)
	f := s.files[2]
	sync := func(dataOnly bool) (commits, flushes int) {
		s.dev.Observe(func(e blockdev.Event) {
			if e.Op == blockdev.OpFlush {
				flushes++
			}
		})
		before := s.v.Stats().Commits
		require.NoError(t, f.Fsync(dataOnly))
		s.dev.Observe(nil)
		return int(s.v.Stats().Commits - before), flushes
	}
	old := func() { // so that a write is sure to change the times
		t.Helper()
		_, err := f.SetAttr(ext4.SetAttr{Atime: &past, Mtime: &past})
		require.NoError(t, err)
		require.NoError(t, s.v.Sync())
		require.Equal(t, past.Unix(), f.Attr().Mtime.Unix())
	}
	for _, n := range []int{stalledSize, 100} { // whole blocks, and a part of one
		old()
		_, err := f.Write(0, make([]byte, n))
		require.NoError(t, err)
		require.NotEqual(t, past.Unix(), f.Attr().Mtime.Unix())
		d, err := f.Read(0, n)
		require.NoError(t, err)
		d.Release()
		commits, flushes := sync(true)
		require.Zero(t, commits)
		require.Equal(t, 1, flushes)
		commits, _ = sync(false)
		require.Equal(t, 1, commits, "the times changed")
		commits, flushes = sync(false)
		require.Zero(t, commits)
		require.Equal(t, 1, flushes)
	}
	for _, off := range []int64{stalledSize, 3 * stalledSize, 2 * stalledSize} { // longer, and into a hole
		old()
		_, err := f.Write(off, make([]byte, 4096))
		require.NoError(t, err)
		commits, _ := sync(true)
		require.Equal(t, 1, commits)
	}
	d, err := f.Read(0, 1)
	require.NoError(t, err)
	d.Release()
	s.close(t, img)
}

// TestFlushesAreShared: many callers that only need the device flushed, while it is busy with a flush, need one more together.
func TestFlushesAreShared(t *testing.T) {
	img := disktest.Make(t, "16M")
	s := openStalled(t, img)
	f := s.files[2]
	held, release := s.dev.Hold(blockdev.Fault{Op: blockdev.OpFlush, Times: 1})
	t.Cleanup(release)
	var flushes atomic.Int64
	s.dev.Observe(func(e blockdev.Event) {
		if e.Op == blockdev.OpFlush {
			flushes.Add(1)
		}
	})
	const many = 8
	results := make(chan error, many)
	sync := func() { results <- f.Fsync(true) }
	go sync()
	within(t, "the first gets to the device", func() { <-held })
	before := s.v.Volume().Cache.Stats().FlushesShared
	for range many - 1 {
		go sync()
	}
	require.Eventually(t, func() bool { return s.v.Volume().Cache.Stats().FlushesShared == before+many-2 }, 2*time.Minute, time.Millisecond)
	require.Empty(t, results)
	require.Zero(t, flushes.Load())
	release()
	within(t, "all of them go on", func() {
		for range many {
			require.NoError(t, <-results)
		}
	})
	require.EqualValues(t, 2, flushes.Load())
	s.dev.Observe(nil)
	d, err := f.Read(0, 1)
	require.NoError(t, err)
	d.Release()
	s.close(t, img)
}
