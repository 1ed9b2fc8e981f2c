package schedidle

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/affinity"
)

func TestProcessor(t *testing.T) {
	fields := "7 (a) b) 1 2) S" + strings.Repeat(" 5", 35)
	cpu, ok := processor([]byte(fields + " 17 0 0\n"))
	require.True(t, ok)
	require.Equal(t, 17, cpu)
	cpu, ok = processor([]byte(fields + " 3\n"))
	require.True(t, ok, "the last field of an old kernel's line")
	require.Equal(t, 3, cpu)
	for _, real := range []string{" 50 1", " 1 2", " 0 6 0"} {
		cpu, ok = processor([]byte(fields + " 3" + real + "\n"))
		require.True(t, ok)
		require.Equal(t, affinity.Nowhere, cpu, "a real-time program, of which priority and policy are%s", real)
	}
	for _, wrong := range []string{"", "7", "7 (x", "7 (x)", "7 (x) S 1 2", fields, fields + " 3", fields + " y 0", fields + "  0", fields + " 9999999999999999999 0"} {
		_, ok = processor([]byte(wrong))
		require.False(t, ok, "%q", wrong)
	}
}

// TestRunsOn: the CPU of a thread that waits is the one to which it is bound.
func TestRunsOn(t *testing.T) {
	for cpu := range runtime.NumCPU() {
		cat := exec.Command("taskset", "-c", strconv.Itoa(cpu), "cat")
		in, err := cat.StdinPipe()
		require.NoError(t, err)
		out, err := cat.StdoutPipe()
		require.NoError(t, err)
		if err := cat.Start(); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		_, err = in.Write([]byte("x"))
		require.NoError(t, err)
		_, err = out.Read(make([]byte, 1)) // it runs where it is to
		require.NoError(t, err)
		at, ok := RunsOn(uint32(cat.Process.Pid))
		require.True(t, ok)
		require.Equal(t, cpu, at)
		require.Zero(t, testing.AllocsPerRun(100, func() { RunsOn(uint32(os.Getpid())) }))
		require.NoError(t, in.Close())
		require.NoError(t, cat.Wait())
	}
	// A real-time program is not followed.
	self := make(chan uint32)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its policy
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
			self <- 0
			return
		}
		self <- uint32(unix.Gettid())
		<-self
	}()
	if thread := <-self; thread != 0 {
		at, ok := RunsOn(thread)
		require.True(t, ok)
		require.Equal(t, affinity.Nowhere, at)
		require.True(t, RealTime(thread))
		self <- 0
	}
	_, ok := RunsOn(1 << 30)
	require.False(t, ok)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, other := range []uint32{0, 1 << 30, uint32(unix.Gettid())} {
		require.False(t, RealTime(other))
	}
}

// TestTimes: what a thread has run, of that thread only.
func TestTimes(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := pathOf(uint32(unix.Gettid()), "schedstat")
	before, _, ok := own.times()
	require.True(t, ok)
	for start := time.Now(); time.Since(start) < 20*time.Millisecond; {
	}
	after, kept, ok := own.times()
	require.True(t, ok)
	require.Greater(t, after, before)
	require.Positive(t, kept)
	require.Zero(t, testing.AllocsPerRun(100, func() { own.times() }))
	longest := pathOf(1<<32-1, "schedstat")
	require.Equal(t, "/proc/4294967295/task/4294967295/schedstat\x00", string(longest[:len("/proc/4294967295/task/4294967295/schedstat")+1]))
	_, _, ok = longest.times()
	require.False(t, ok)
}
