package devfuse

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

	"github.com/lanefs/lanefs/fs/schedidle"
)

func TestProcessor(t *testing.T) {
	line := "7 (a) b) 1 2) S" + strings.Repeat(" 5", 35) + " 17 0 0\n"
	cpu, ok := processor([]byte(line))
	require.True(t, ok)
	require.EqualValues(t, 17, cpu)
	cpu, ok = processor([]byte("7 (x) S" + strings.Repeat(" 5", 35) + " 3"))
	require.True(t, ok, "the last field of an old kernel's line")
	require.EqualValues(t, 3, cpu)
	for _, wrong := range []string{"", "7", "7 (x", "7 (x)", "7 (x) S 1 2", "7 (x) S" + strings.Repeat(" 5", 35) + " y 0", "7 (x) S" + strings.Repeat(" 5", 35) + " 99999 0"} {
		_, ok = processor([]byte(wrong))
		require.False(t, ok, "%q", wrong)
	}
}

// anyReader may run on every CPU.
func anyReader() *reader {
	r := &reader{idle: new(schedidle.Thread), on: anywhere}
	for cpu := range maxCPUs {
		r.allowed.Set(cpu)
	}
	return r
}

// TestProgram: one thread's requests are followed, its children's too, those of threads that take turns are not, nor large ones.
func TestProgram(t *testing.T) {
	self := uint32(unix.Gettid())
	var p program
	reset := func() {
		p = program{}
		p.cpu.Store(anywhere)
	}
	r := anyReader()
	followed := func() bool { return p.cpu.Load() != anywhere }

	reset()
	for range look - 1 {
		p.saw(r, request{thread: self})
	}
	require.False(t, followed(), "too few to tell")
	p.saw(r, request{thread: self})
	require.True(t, followed())
	for range 3 * look {
		p.saw(r, request{together: true}) // the kernel's own
	}
	require.True(t, followed())
	for i := range look {
		p.saw(r, request{thread: self, together: i%2 == 0})
	}
	require.False(t, followed(), "requests at the same time")
	for range look {
		p.saw(r, request{thread: self})
	}
	require.True(t, followed())
	for range look {
		p.saw(r, request{thread: self})
		p.saw(r, request{large: true})
	}
	require.False(t, followed(), "beside what the kernel writes back")

	reset()
	for _, threads := range []int{2, 3, 5, 8, 100} {
		for range look {
			p.saw(r, request{thread: self})
		}
		require.True(t, followed())
		for i := range 2 * look {
			p.saw(r, request{thread: self + uint32(i%threads)*1e6})
		}
		require.False(t, followed(), "%d threads that take turns", threads)
		reset()
	}

	reset()
	for i := range 8 * look { // a shell whose children have eight requests each
		thread := self
		if i%16 < 8 {
			thread = self + 1e6 + uint32(i)
			if i%8 > 0 {
				thread = self + 1e6 + uint32(i-i%8)
			}
		}
		p.saw(r, request{thread: thread})
	}
	require.True(t, followed(), "a program and its children")

	reset()
	for i := range 2 * look {
		p.saw(r, request{thread: self, at: time.Duration(i) * lookIn})
	}
	require.False(t, followed(), "a program with few requests")
	reset()
	r.allowed.Zero()
	for range 2 * look {
		p.saw(r, request{thread: self})
	}
	require.False(t, followed(), "a CPU that the daemon may not use")
	r = anyReader()
	r.idle = nil
	for range 2 * look {
		p.saw(r, request{thread: self})
	}
	require.False(t, followed(), "without SCHED_IDLE there is nothing to win")
}

// TestRunsOn: the CPU of a thread that waits is the one to which it is bound.
func TestRunsOn(t *testing.T) {
	var p program
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
		at, ok := p.runsOn(uint32(cat.Process.Pid))
		require.True(t, ok)
		require.EqualValues(t, cpu, at)
		require.Zero(t, testing.AllocsPerRun(100, func() { p.runsOn(uint32(os.Getpid())) }))
		require.NoError(t, in.Close())
		require.NoError(t, cat.Wait())
	}
	_, ok := p.runsOn(1 << 30)
	require.False(t, ok)
}
