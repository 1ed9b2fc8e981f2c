package privilege

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/iouring"
	"github.com/lanefs/lanefs/fs/share/seccomp"
)

const childEnv = "LANEFS_PRIVILEGE_CHILD"

func TestMain(m *testing.M) {
	if way := os.Getenv(childEnv); way != "" {
		run := child
		switch way {
		case "held":
			run = heldChild
		case "forbidden":
			run = forbiddenChild
		}
		if err := run(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var keep = Of(unix.CAP_SYS_ADMIN)

// TestDrop runs in a child: what is dropped does not come back.
func TestDrop(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("SKIP: no signal handler for %s yet", runtime.GOARCH)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for range 5 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childEnv+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// heldChild has a thread that another process holds while the others drop, and lets go then.
func heldChild() error {
	dropLooks = 100
	tid, in := make(chan int, 1), bufio.NewReader(os.Stdin)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		var b [1]byte
		unix.Read(pipe[0], b[:])
	}()
	held := <-tid
	for { // it must wait in a system call: who holds a thread that runs Go code holds up the collector, and so all
		stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", held))
		if err != nil {
			return err
		}
		if bytes.Contains(stat, []byte(") S ")) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println(held)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	err := Drop(keep)
	if err == nil {
		return errors.New("a thread that is held has dropped its privileges")
	}
	fmt.Println(err)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	for {
		all, err := Threads(os.Getpid())
		if err != nil {
			return err
		}
		if all[held].within(keep, refused{}) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// forbiddenChild must keep its capabilities, as where a filter of system calls forbids capset(2). The rest it does in all threads.
func forbiddenChild() error {
	dropLooks = 100
	if err := seccomp.Deny(seccomp.Filter{unix.SYS_CAPSET: {}}); err != nil {
		return err
	}
	before, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	err = Drop(keep)
	if err == nil || !strings.Contains(err.Error(), "a filter of system calls forbids it (a container's?): capset: operation not permitted") {
		return fmt.Errorf("it said: %w", err)
	}
	all, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	had := before[os.Getpid()].Permitted
	for tid, s := range all {
		if flusher := had&Of(unix.CAP_SYS_RESOURCE) != 0; s.Permitted != had || !s.NoNewPrivs || s.IOFlusher != flusher {
			return fmt.Errorf("thread %d: %+v", tid, s)
		}
	}
	return nil
}

// TestDropForbidden: threads that may not give up their capabilities are not waited for.
func TestDropForbidden(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("SKIP: no signal handler for %s yet", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, which has capabilities")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=forbidden")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestDropLate: a thread that takes the signal after Drop has given up does what it was asked.
func TestDropLate(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("SKIP: no signal handler for %s yet", runtime.GOARCH)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"=held")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	tid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)

	runtime.LockOSThread() // it holds the other
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(tid); err != nil {
		cancel()
		_ = cmd.Wait()
		t.Skipf("SKIPPED: ptrace: %v", err)
	}
	require.NoError(t, unix.PtraceInterrupt(tid))
	_, err = unix.Wait4(tid, nil, unix.WALL, nil)
	require.NoError(t, err)
	fmt.Fprintln(in)
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, strconv.Itoa(tid))
	require.NoError(t, unix.PtraceDetach(tid))
	fmt.Fprintln(in)
	rest, _ := io.ReadAll(lines)
	require.NoError(t, cmd.Wait(), "%s", rest)
}

// ioThread has the kernel make a worker for an io_uring, which waits in a read of an empty pipe. nil: there is no io_uring here.
func ioThread(fd int) (*iouring.Ring, error) {
	ring, err := iouring.New(iouring.Options{Entries: 1})
	if err != nil {
		return nil, nil
	}
	e, b := ring.Next(), make([]byte, 1)
	e.Opcode, e.Flags, e.FD = iouring.OpRead, 1<<4, int32(fd) // IOSQE_ASYNC: by a worker at once
	e.Addr, e.Len = uint64(uintptr(unsafe.Pointer(&b[0]))), 1
	if err := ring.Enter(false); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob("/proc/self/task/*/stat")
		if err != nil {
			return nil, err
		}
		for _, f := range tasks {
			if stat, err := os.ReadFile(f); err == nil && taskFlags(string(stat))&ioWorker != 0 {
				return ring, nil
			}
		}
	}
	return nil, errors.New("the kernel shows no worker of the ring")
}

// child has threads of every sort: asleep in the kernel, at work, being born while the others drop, and one of the C
// library's that Go knows nothing of.
func child() error {
	before, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	if err := foreignThread(); err != nil {
		return err
	}
	runtime.LockOSThread() // a ring's worker ends with the thread that submitted
	ring, err := ioThread(pipe[0])
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(ring) // it ends with the process
	for range 4 {
		go func() {
			runtime.LockOSThread()
			var b [1]byte
			unix.Read(pipe[0], b[:])
		}()
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				done := make(chan struct{})
				go func() { // ends with its thread
					runtime.LockOSThread()
					close(done)
				}()
				<-done
			}
		})
	}
	err = Drop(keep)
	close(stop)
	wg.Wait()
	if err != nil {
		return err
	}
	all, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	if len(all) < 6 {
		return fmt.Errorf("%d threads: this tests nothing", len(all))
	}
	had := before[os.Getpid()].Permitted
	for tid, s := range all {
		if flusher := had&Of(unix.CAP_SYS_RESOURCE) != 0; s.IOFlusher != flusher { // lab/vm has a root with it, where this machine's has not
			return fmt.Errorf("thread %d: I/O flusher: %v instead of %v", tid, s.IOFlusher, flusher)
		}
		if want := had & keep; !s.within(keep, refused{}) || s.Permitted != want || s.Effective != want {
			return fmt.Errorf("thread %d: %+v", tid, s)
		}
	}
	// A program that is run gets no more either, though it is root's.
	out, err := exec.Command("cat", "/proc/self/status").Output()
	if err != nil {
		return err
	}
	s, err := parseStatus(string(out))
	if err != nil {
		return err
	}
	if !s.within(keep, refused{}) {
		return fmt.Errorf("after exec: %+v", s)
	}
	return Drop(keep) // again, when there is nothing to drop
}

// semaphore is a sem_t that nobody posts.
var semaphore [4]uint64

// foreignThread makes a thread by pthread_create that waits for ever.
func foreignThread() error {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	create, err := purego.Dlsym(libc, "pthread_create")
	if err != nil {
		return err
	}
	wait, err := purego.Dlsym(libc, "sem_wait")
	if err != nil {
		return err
	}
	var thread uintptr
	var create4 func(thread *uintptr, attr, start, arg uintptr) int32
	purego.RegisterFunc(&create4, create)
	if rc := create4(&thread, 0, wait, uintptr(unsafe.Pointer(&semaphore))); rc != 0 {
		return fmt.Errorf("pthread_create: %d", rc)
	}
	return nil
}

func TestParseStatus(t *testing.T) {
	const text = "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\nCapBnd:\t1\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n"
	s, err := parseStatus(text)
	require.NoError(t, err)
	require.Equal(t, State{Permitted: 0x1ffffffffff, Effective: keep, NoNewPrivs: true}, s)
	require.False(t, s.within(keep, refused{}))
	s.Permitted = keep
	require.True(t, s.within(keep, refused{}))
	s.NoNewPrivs = false
	require.False(t, s.within(keep, refused{}))
	_, err = parseStatus("CapPrm:\tx\n")
	require.Error(t, err)
	_, err = parseStatus(strings.Replace(text, "CapAmb", "Cap", 1))
	require.ErrorContains(t, err, "missing")
}
