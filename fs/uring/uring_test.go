package uring_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/fs/uring/nullfs"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

func init() { helpers["serve"] = serve }

// TestNull: many read and write at once; sizes arrive as they were sent.
func TestNull(t *testing.T) { uringtest.Both(t, testNull) }

func testNull(t *testing.T, overURing bool) {
	m := mount(t, nullfs.New(), overURing)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			flags := os.O_RDWR
			if i%2 == 0 {
				flags |= unix.O_DIRECT
			}
			fd, err := unix.Open(m.Dir+"/data", flags, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Munmap(b)
			for range 200 {
				size := (1 + rand.IntN(256)) * 4096
				off := int64(rand.IntN(1000)) * 4096
				if n, err := unix.Pread(fd, b[:size], off); n != size || err != nil {
					t.Errorf("read of %d bytes: %d, %v", size, n, err)
				}
				if n, err := unix.Pwrite(fd, b[:size], off); n != size || err != nil {
					t.Errorf("write of %d bytes: %d, %v", size, n, err)
				}
			}
		})
	}
	all.Wait()
}

// on runs f on a CPU.
func on(cpu int, f func()) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	f()
}

// TestBlockedHandlers: requests that wait hold up no other, of the same CPU or another.
func TestBlockedHandlers(t *testing.T) { uringtest.Both(t, testBlockedHandlers) }

func testBlockedHandlers(t *testing.T, overURing bool) {
	n := nullfs.New()
	blocked := 60 // of 64 that there may be by /dev/fuse
	if overURing {
		blocked = uring.DefaultServers(runtime.NumCPU()) - 1
	}
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{}, blocked)
	m := mount(t, n, overURing)
	var all sync.WaitGroup
	for i := range blocked {
		all.Go(func() {
			on(0, func() {
				var st unix.Stat_t
				if err := unix.Stat(fmt.Sprintf("%s/block%d", m.Dir, i), &st); err != unix.ENOENT {
					t.Error(err)
				}
			})
		})
	}
	for range blocked {
		<-n.Entered
	}
	read := make(chan error)
	for cpu := range runtime.NumCPU() {
		go on(cpu, func() {
			for i := range 100 {
				var st unix.Stat_t
				if err := unix.Stat(fmt.Sprintf("%s/other%d", m.Dir, i), &st); err != unix.ENOENT {
					read <- fmt.Errorf("a lookup: %w", err)
					return
				}
			}
			read <- nil
		})
	}
	for range runtime.NumCPU() {
		select {
		case err := <-read:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			close(n.Blocked)
			t.Fatal("requests that wait hold up others")
		}
	}
	close(n.Blocked)
	all.Wait()
}

// TestOffline: requests of a CPU that was offline when the mount was made are served, many at once.
func TestOffline(t *testing.T) {
	uringtest.Enable(t)
	if runtime.NumCPU() < 2 {
		t.Skip("SKIPPED: there is one CPU only")
	}
	uring.PretendOffline(t)
	n := nullfs.New()
	const blocked = 3
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{}, blocked)
	m := mount(t, n, true)
	var all sync.WaitGroup
	for i := range 20 { // answered at once, so that the servers are there
		done := make(chan error)
		go on(1, func() {
			var st unix.Stat_t
			done <- unix.Stat(fmt.Sprintf("%s/other%d", m.Dir, i), &st)
		})
		require.ErrorIs(t, <-done, unix.ENOENT)
	}
	time.Sleep(200 * time.Millisecond)
	for i := range blocked {
		all.Go(func() {
			on(1, func() {
				var st unix.Stat_t
				if err := unix.Stat(fmt.Sprintf("%s/block%d", m.Dir, i), &st); err != unix.ENOENT {
					t.Error(err)
				}
			})
		})
	}
	for range blocked {
		select {
		case <-n.Entered:
		case <-time.After(time.Minute):
			t.Error("a request waits for another")
		}
	}
	close(n.Blocked)
	all.Wait()
}

// TestBusy: a mount with an open file stays, and works.
func TestBusy(t *testing.T) { uringtest.Both(t, testBusy) }

func testBusy(t *testing.T, overURing bool) {
	m := mount(t, nullfs.New(), overURing)
	f, err := os.OpenFile(m.Dir+"/data", os.O_RDWR, 0)
	require.NoError(t, err)
	require.ErrorIs(t, unix.Unmount(m.Dir, 0), unix.EBUSY)
	_, err = f.WriteAt([]byte("x"), 0)
	require.NoError(t, err)
	require.NoError(t, unix.Unmount(m.Dir, unix.MNT_DETACH))
	_, err = f.WriteAt([]byte("x"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	m.wait(t)
}

// TestAbort: an aborted connection ends the requests under way and the servers.
func TestAbort(t *testing.T) { uringtest.Both(t, testAbort) }

func testAbort(t *testing.T, overURing bool) {
	n := nullfs.New()
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{})
	m := mount(t, n, overURing)
	answer := make(chan error)
	go func() {
		var st unix.Stat_t
		answer <- unix.Stat(m.Dir+"/blocked", &st)
	}()
	<-n.Entered
	number, err := m.Connection()
	require.NoError(t, err)
	abort(t, number)
	require.ErrorIs(t, <-answer, unix.ECONNABORTED)
	var st unix.Stat_t
	require.ErrorIs(t, unix.Stat(m.Dir+"/other", &st), unix.ENOTCONN)
	close(n.Blocked)
	m.wait(t)
	require.NoError(t, unix.Unmount(m.Dir, 0))
}

// abort has the kernel abort a connection; where the control file system is not mounted, it is for a moment.
func abort(t *testing.T, connection uint32) {
	const dir = "/sys/fs/fuse/connections"
	path := filepath.Join(dir, fmt.Sprint(connection), "abort")
	err := os.WriteFile(path, []byte("1"), 0)
	if os.IsNotExist(err) {
		require.NoError(t, unix.Mount("fusectl", dir, "fusectl", 0, ""))
		defer unix.Unmount(dir, unix.MNT_DETACH)
		err = os.WriteFile(path, []byte("1"), 0)
	}
	require.NoError(t, err)
}

// TestKilled: the mount of a daemon that was killed while it was busy is dead at once, and can be taken away.
func TestKilled(t *testing.T) { uringtest.Both(t, testKilled) }

func testKilled(t *testing.T, overURing bool) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	for range 5 {
		dir := t.TempDir()
		cmd := helper("serve", dir, fmt.Sprint(overURing))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, _ := bufio.NewReader(out).ReadString('\n')
		require.Equal(t, "mounted\n", line)
		load := helper("load", dir+"/data", "read", "4096", "100000000", "rand")
		load.Stderr = nil
		require.NoError(t, load.Start())
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		cmd.Wait()
		require.Error(t, load.Wait(), "the load ends with the daemon")
		var st unix.Stat_t
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if err = unix.Stat(dir+"/gone", &st); err != unix.ECONNABORTED && err != unix.ECANCELED || time.Now().After(end) { // it came while the connection ended
				break
			}
		}
		unmounted := unix.Unmount(dir, 0)
		require.ErrorIs(t, err, unix.ENOTCONN)
		require.NoError(t, unmounted)
	}
}

// serve mounts a null file system and waits to be killed.
func serve(args []string) error {
	m, err := nullfs.NewMount(args[0], nullfs.New(), args[1] == "true", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	m.Wait()
	return nil
}

// TestUnavailable: what is missing is said with its remedy, before there is a mount.
func TestUnavailable(t *testing.T) {
	root := t.TempDir()
	require.ErrorIs(t, uring.Check(root), uring.ErrNoSys)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/module"), 0o755))
	require.ErrorIs(t, uring.Check(root), uring.ErrKernel)
	set := func(name, value string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(value), 0o644))
	}
	set("sys/module/fuse/parameters/enable_uring", "N\n")
	require.ErrorIs(t, uring.Check(root), uring.ErrParameter)
	require.ErrorContains(t, uring.Check(root), "echo Y > /sys/module/fuse/parameters/enable_uring")
	set("sys/module/fuse/parameters/enable_uring", "Y\n")
	require.NoError(t, uring.Check(root))
	set("proc/sys/kernel/io_uring_disabled", "2\n")
	require.ErrorIs(t, uring.Check(root), uring.ErrDisabled)
	set("proc/sys/kernel/io_uring_disabled", "0\n")
	require.NoError(t, uring.Check(root))
}

// TestRefused: a connection whose INIT did not agree on io_uring, and one with other requests' sizes, are refused, and nothing is left.
func TestRefused(t *testing.T) {
	uringtest.Enable(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0) // of no connection
	require.NoError(t, err)
	r, err := uring.Open(uring.Options{})
	require.NoError(t, err)
	require.Error(t, r.Start(fd, nil))
	r.Wait()
	_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.ErrorIs(t, err, unix.EBADF)
}
