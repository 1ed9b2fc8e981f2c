package fs

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// copied is how many bytes the CPU copies during f.
func (m *mounted) copied(f func()) (read, written int64) {
	before := m.vol.Stats()
	f()
	s := m.vol.Stats()
	return s.CopiedRead - before.CopiedRead, s.CopiedWritten - before.CopiedWritten
}

// bothWays runs a test with requests on rings and by /dev/fuse.
func bothWays(t *testing.T, test func(t *testing.T, way IOUring)) {
	uringtest.Both(t, func(t *testing.T, rings bool) {
		way := IOUringOff
		if rings {
			way = IOUringOn
		}
		test(t, way)
	})
}

// TestPayloadCopies: the CPU copies no byte of a file that is written from its start and read from a block's; of others what it
// must.
func TestPayloadCopies(t *testing.T) { bothWays(t, testPayloadCopies) }

func testPayloadCopies(t *testing.T, way IOUring) {
	m := newMount(t, Options{IOUring: way})
	if way == IOUringOn {
		require.Equal(t, int(m.srv.payloads.pinned.Load()), m.srv.RingThreads())
	}
	want := make([]byte, 3<<20+1234)
	rand.Read(want)
	check := func(name string) {
		got, err := os.ReadFile(m.path(name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, want), name)
	}
	drop := func(name string) {
		f, err := os.Open(m.path(name))
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, f.Sync())
		require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	read, written := m.copied(func() {
		require.NoError(t, os.WriteFile(m.path("file"), want, 0o600)) // as cp does, with an odd end
		drop("file")
		check("file")
	})
	require.Zero(t, read)
	require.Zero(t, written)

	// Direct I/O of blocks, over what is there and past it.
	f, err := os.OpenFile(m.path("file"), os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	b := directMemory(t, 1<<20)
	copy(b, want[1<<20:])
	read, written = m.copied(func() {
		_, err = f.WriteAt(b[:64<<10], 1<<20)
		require.NoError(t, err)
		_, err = f.ReadAt(b, 1<<20)
		require.NoError(t, err)
	})
	require.Zero(t, read)
	require.Zero(t, written)
	check("file")

	// The end of the request within a block that has more bytes: those of that block.
	rand.Read(want[4096:4200])
	read, written = m.copied(func() {
		_, err = f.WriteAt(want[4096:4200], 4096)
		require.NoError(t, err)
	})
	require.Zero(t, read)
	require.EqualValues(t, 104, written)
	check("file")

	// The start within a block: all bytes.
	rand.Read(want[8292:8392])
	_, written = m.copied(func() {
		_, err = f.WriteAt(want[8292:8392], 8292)
		require.NoError(t, err)
	})
	require.EqualValues(t, 100, written)
	read, _ = m.copied(func() {
		n, err := unix.Pread(int(f.Fd()), b[:512], 8292-100)
		require.NoError(t, err)
		require.Equal(t, 512, n)
		require.True(t, bytes.Equal(b[:n], want[8192:8192+n]))
		n, err = unix.Pread(int(f.Fd()), b[:512], 8192+512)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b[:n], want[8192+512:8192+512+n]))
	})
	require.EqualValues(t, 512, read)
	check("file")
	require.NoError(t, f.Close())
	m.unmount()
}

// TestDescriptorUnknown: where the connection's descriptor is not found go-fuse reads /dev/fuse, and the CPU copies what is written; what is read if
// it cannot be sent from where it is.
func TestDescriptorUnknown(t *testing.T) {
	descriptor = func(uint32) (int, error) { return -1, errors.ErrUnsupported }
	defer func() { descriptor = exchange.Descriptor }()
	want := make([]byte, 3<<20+1234)
	rand.Read(want)
	m := newMount(t, Options{IOUring: IOUringOff})
	require.Nil(t, m.srv.device.Load())
	_, written := m.copied(func() { require.NoError(t, os.WriteFile(m.path("file"), want, 0o600)) })
	require.EqualValues(t, len(want), written)
	m.unmount()
	m = newMount(t, Options{IOUring: IOUringOff, CopyReads: true})
	require.NoError(t, os.WriteFile(m.path("file"), want, 0o600))
	// Past the page cache, from which the kernel may drop a page that it then reads again.
	f, err := os.OpenFile(m.path("file"), os.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(t, err)
	defer f.Close()
	b := directMemory(t, 4<<20)
	read, _ := m.copied(func() {
		n, err := f.ReadAt(b, 0)
		require.ErrorIs(t, err, io.EOF)
		require.True(t, bytes.Equal(b[:n], want))
	})
	require.EqualValues(t, len(want), read)
}

// TestPayloadsShort: requests go on with copies where there is no pinned memory for payloads.
func TestPayloadsShort(t *testing.T) { bothWays(t, testPayloadsShort) }

func testPayloadsShort(t *testing.T, way IOUring) {
	v := newVolume(t)
	end := v.dev.Shorten(blockdev.Shortage{})
	dir := t.TempDir()
	s, err := Mount(dir, v.vol, Options{IOUring: way})
	end()
	require.NoError(t, err)
	require.Zero(t, s.payloads.pinned.Load())
	want := make([]byte, 2<<20)
	rand.Read(want)
	require.NoError(t, os.WriteFile(dir+"/file", want, 0o600))
	f, err := os.OpenFile(dir+"/file", os.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(t, err)
	b := directMemory(t, len(want))
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.True(t, bytes.Equal(b, want))
	require.EqualValues(t, len(want), v.vol.Stats().CopiedRead)
	require.EqualValues(t, len(want), v.vol.Stats().CopiedWritten)
	require.NoError(t, s.Unmount())
	v.close()
}

// TestPayloadsTried: whether the kernel reaches memory for payloads is tried until it does, not for each: what is tried is resident. What it does not reach is given back.
func TestPayloadsTried(t *testing.T) {
	v := newVolume(t)
	is, tried := false, 0
	did := reachable
	reachable = func([]byte) bool {
		tried++
		return is
	}
	defer func() { reachable = did }()
	before := v.dev.Outstanding()
	var of payloads
	for range 2 {
		of.open(v.vol)
		is, tried = false, 0
		for range 3 {
			require.Nil(t, of.alloc(4096))
		}
		require.Equal(t, 3, tried)
		require.Zero(t, of.pinned.Load())
		require.Equal(t, before, v.dev.Outstanding())
		is = true
		var all []*exchange.Payload
		for range 3 {
			all = append(all, of.alloc(4096))
			require.NotNil(t, all[len(all)-1])
		}
		require.Equal(t, 4, tried)
		require.EqualValues(t, 3, of.pinned.Load())
		for _, p := range all {
			p.Free()
		}
	}
	v.close()
}

// TestPayloadHeld: while the device may still write to a payload it is not the kernel's, nor the pool's, though the program that
// asked is gone and the connection has ended.
func TestPayloadHeld(t *testing.T) { bothWays(t, testPayloadHeld) }

func testPayloadHeld(t *testing.T, way IOUring) {
	v := newVolume(t)
	dir := t.TempDir()
	s, err := Mount(dir, v.vol, Options{IOUring: way})
	require.NoError(t, err)
	pinned := int(s.payloads.pinned.Load())
	require.NotZero(t, pinned)
	require.NoError(t, os.WriteFile(dir+"/file", make([]byte, 1<<20), 0o600))
	f, err := os.OpenFile(dir+"/file", os.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(t, err)
	held, release := v.dev.Hold(blockdev.Fault{Op: blockdev.OpRead})
	b := directMemory(t, 1<<20)
	done := make(chan error)
	go func() { _, err := f.ReadAt(b, 0); done <- err }()
	<-held
	during := v.dev.Outstanding()
	s.Abort()
	require.Error(t, <-done)
	f.Close()
	gone := make(chan struct{})
	go func() { s.Wait(); close(gone) }()
	require.Eventually(t, func() bool { return v.dev.Outstanding() <= during-pinned/2 }, time.Minute, time.Millisecond, "payloads of threads that wait are given back")
	select {
	case <-gone:
		t.Fatal("the mount has ended, and the device still writes to its memory")
	case <-time.After(200 * time.Millisecond):
	}
	require.NotZero(t, v.dev.Outstanding())
	release()
	<-gone
	require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	v.close()
}

// directMemory is memory for direct I/O.
func directMemory(t *testing.T, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}
