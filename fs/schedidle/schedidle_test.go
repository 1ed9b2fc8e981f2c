package schedidle

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The test binary is a program that says what New says, too.
const beProcess = "LANEFS_TEST_SCHEDIDLE"

func TestMain(m *testing.M) {
	if os.Getenv(beProcess) == "" {
		os.Exit(m.Run())
	}
	g, err := New(1)
	if err != nil {
		fmt.Print(err)
		return
	}
	fmt.Print("policy ", g.policy)
}

// answering is a thread that takes requests, bound to a CPU of its own choice.
type answering struct {
	t       *Thread
	cpu     int
	tid     int
	pause   atomic.Int64 // ns between requests
	taken   atomic.Int64
	due     uint32 // 1: there is always a request
	stop    atomic.Bool
	left    atomic.Bool // Leave was called
	leave   atomic.Bool
	stopped chan struct{}
}

func answer(t *testing.T, g *Group, cpu *CPU, on int) *answering {
	a := &answering{cpu: on, stopped: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(a.stopped)
		runtime.LockOSThread()
		bind(a.cpu)
		a.tid, a.t = unix.Gettid(), g.Add(cpu, Due{Word: &a.due, Mask: 1})
		close(ready)
		for !a.stop.Load() {
			a.t.Took()
			a.taken.Add(1)
			a.t.Answered()
			if a.leave.Load() {
				a.t.Leave()
				a.left.Store(true)
			}
			nap := unix.NsecToTimespec(a.pause.Load())
			_ = unix.Nanosleep(&nap, nil)
		}
		a.t.Remove()
	}()
	<-ready
	t.Cleanup(a.end)
	return a
}

func (a *answering) end() {
	a.stop.Store(true)
	<-a.stopped
}

func bind(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		panic(err)
	}
}

// someCPU is one on which the test may run.
func someCPU(t *testing.T) int {
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			return cpu
		}
	}
	t.Fatal("no CPU")
	return 0
}

func (a *answering) policy(t *testing.T) int {
	p, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(a.tid), 0, 0)
	require.Zero(t, errno)
	return int(p)
}

func newGroup(t *testing.T, threads int) *Group {
	g, err := New(threads)
	if err != nil && os.Geteuid() != 0 {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

func eventually(t *testing.T, what string, f func() bool) {
	require.Eventually(t, f, time.Minute, time.Millisecond, what)
}

// TestPolicy: a thread with many requests has SCHED_IDLE, and has its old policy again when there are few. The first may take a while beside other programs.
func TestPolicy(t *testing.T) {
	g := newGroup(t, 1)
	a := answer(t, g, new(CPU), someCPU(t))
	eventually(t, "many requests", func() bool { return a.policy(t) == unix.SCHED_IDLE })
	require.LessOrEqual(t, g.Stats().Now, 1)
	eventually(t, "it is counted", func() bool { return g.Stats().Times > 0 })
	a.pause.Store(int64(20 * time.Millisecond))
	eventually(t, "few requests", func() bool { return a.policy(t) == unix.SCHED_NORMAL })
	for range 3 * many {
		require.Equal(t, unix.SCHED_NORMAL, a.policy(t))
		time.Sleep(time.Millisecond)
	}
	a.pause.Store(0)
	eventually(t, "many requests again", func() bool { return a.policy(t) == unix.SCHED_IDLE })
	a.leave.Store(true)
	eventually(t, "it leaves", func() bool { return a.left.Load() })
	a.end()
	require.Zero(t, g.active.Load())
}

// TestHog: a thread that a program keeps from running has its old policy again, and its CPU's threads keep that for longer each time.
func TestHog(t *testing.T) {
	g, cpu := newGroup(t, 1), new(CPU)
	a := answer(t, g, cpu, someCPU(t))
	eventually(t, "many requests", func() bool { return a.policy(t) == unix.SCHED_IDLE })
	atomic.StoreUint32(&a.due, 1)
	hog := exec.Command("sh", "-c", "while :; do :; done")
	hog.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread() // the parent, for Pdeathsig
	defer runtime.UnlockOSThread()
	require.NoError(t, hog.Start())
	defer func() {
		_ = hog.Process.Kill()
		_ = hog.Wait()
	}()
	var set unix.CPUSet
	set.Set(a.cpu)
	require.NoError(t, unix.SchedSetaffinity(hog.Process.Pid, &set))
	eventually(t, "others keep it from running", func() bool { return g.Stats().Pauses >= 2 })
	require.GreaterOrEqual(t, cpu.pause.Load(), int64(firstPause))
	before := a.taken.Load()
	eventually(t, "it goes on", func() bool { return a.taken.Load() >= before+100 })
}

// TestGarbage: Go's garbage collector does not wait for the guard, nor for long for a thread that the guard looks after.
func TestGarbage(t *testing.T) {
	g := newGroup(t, 4)
	on := someCPU(t)
	for range 3 {
		answer(t, g, new(CPU), on)
	}
	eventually(t, "the guard has something to do", func() bool { return g.active.Load() > 0 })
	for range 50 {
		runtime.GC()
	}
}

func TestBusy(t *testing.T) {
	c := new(CPU)
	now := time.Hour
	for _, want := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause, 8 * firstPause, 16 * firstPause, 32 * firstPause} {
		c.busy(now)
		require.Equal(t, want, time.Duration(c.pause.Load()))
		c.busy(now + want/2)
		require.Equal(t, now+want, time.Duration(c.notBefore.Load()), "two threads say so at once")
		now += want + time.Millisecond
	}
	for range 10 {
		now += time.Duration(c.pause.Load()) + time.Millisecond
		c.busy(now)
	}
	require.Equal(t, longestPause, time.Duration(c.pause.Load()))
	now += 6 * longestPause
	c.busy(now)
	require.Equal(t, firstPause, time.Duration(c.pause.Load()), "it was long ago")
}

func TestSecond(t *testing.T) {
	for line, want := range map[string]time.Duration{"12 345 6\n": 345, "0 0 1": 0, "1 9": 9, "": -1, "12": -1, "12 ": -1, "12 x": -1, "x 12": -1} {
		n, ok := second([]byte(line))
		require.Equal(t, want >= 0, ok, "%q", line)
		if ok {
			require.Equal(t, want, n, "%q", line)
		}
	}
}

// TestForeign: a policy or a nice value that somebody else gives a thread stays.
func TestForeign(t *testing.T) {
	g := newGroup(t, 1)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	policy := func() int {
		p, err := getPolicy()
		require.NoError(t, err)
		return p
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with what it was given
		thread := g.Add(new(CPU), Due{})
		defer thread.Remove()
		busy := func() {
			for range 100 * many {
				thread.Took()
				thread.Answered()
			}
		}
		require.Zero(t, setPolicy(0, unix.SCHED_BATCH))
		busy()
		require.Equal(t, unix.SCHED_BATCH, policy(), "a thread with many requests")
		g.giveBack(thread.s)
		require.Equal(t, unix.SCHED_BATCH, policy(), "the guard")

		require.Zero(t, setPolicy(0, unix.SCHED_NORMAL))
		require.NoError(t, unix.Setpriority(unix.PRIO_PROCESS, 0, -1))
		busy()
		require.Zero(t, g.Stats().Times, "a nice value below 0")

		require.NoError(t, unix.Setpriority(unix.PRIO_PROCESS, 0, 0))
		for g.Stats().Times == 0 {
			busy()
		}
	}()
	<-done
}

// TestIOClass: what a thread with SCHED_IDLE reads and writes does not wait for all others' requests, and a class that somebody has chosen stays.
func TestIOClass(t *testing.T) {
	g := newGroup(t, 2)
	class := func(a *answering) uintptr {
		p, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, uintptr(a.tid), 0)
		require.Zero(t, errno)
		return p
	}
	a := answer(t, g, new(CPU), someCPU(t))
	eventually(t, "many requests", func() bool { return a.policy(t) == unix.SCHED_IDLE })
	require.EqualValues(t, ioprioClassBE, class(a)>>ioprioClassShift)
	a.end()
	b := answer(t, g, new(CPU), someCPU(t))
	const chosen = ioprioClassBE<<ioprioClassShift | 7
	_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(b.tid), chosen)
	require.Zero(t, errno)
	times := g.Stats().Times
	eventually(t, "many requests", func() bool { return g.Stats().Times > times })
	require.EqualValues(t, chosen, class(b))
}

// TestFull: a thread for which there is no place, or no group, is left as it is.
func TestFull(t *testing.T) {
	g := newGroup(t, 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	one := g.Add(new(CPU), Due{})
	require.NotNil(t, one)
	require.Nil(t, g.Add(new(CPU), Due{}))
	one.Remove()
	again := g.Add(new(CPU), Due{})
	require.NotNil(t, again)
	again.Remove()
	for _, none := range []*Thread{(*Group)(nil).Add(new(CPU), Due{}), nil} {
		none.Took()
		none.Answered()
		none.Leave()
		none.Remove()
	}
}

// TestDescriptors: with few descriptors a thread is left as it is, and takes none.
func TestDescriptors(t *testing.T) {
	g := newGroup(t, 2)
	g.mostOpen = 1
	on := someCPU(t)
	one := answer(t, g, new(CPU), on)
	eventually(t, "many requests", func() bool { return one.policy(t) == unix.SCHED_IDLE })
	two := answer(t, g, new(CPU), on)
	eventually(t, "many requests of another", func() bool { return two.taken.Load() > 10*many })
	require.Equal(t, unix.SCHED_NORMAL, two.policy(t))
	require.EqualValues(t, 1, g.open.Load())
	one.end()
	two.end()
	require.Zero(t, g.open.Load())
}

// TestTookAllocs: requests cost no memory.
func TestTookAllocs(t *testing.T) {
	g := newGroup(t, 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := g.Add(new(CPU), Due{})
	defer thread.Remove()
	require.Zero(t, testing.AllocsPerRun(50, func() {
		for range 2 * many {
			thread.Took()
		}
	}))
}

// TestNew: who may not leave SCHED_IDLE, or has another policy, has no group.
func TestNew(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	run := func(uid uint32, name ...string) string {
		c := exec.Command(name[0], name[1:]...)
		c.Env = append(os.Environ(), beProcess+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatal(err, string(exit.Stderr))
		}
		require.NoError(t, err)
		return string(out)
	}
	others := copyFor(t, exe)
	require.Equal(t, "policy "+strconv.Itoa(unix.SCHED_NORMAL), run(0, exe))
	if limitOfNice(t) < 20 {
		require.Contains(t, run(65534, others), "a thread may not leave SCHED_IDLE without CAP_SYS_NICE or a limit on nice values (ulimit -e) of 20: ")
	}
	if _, err := exec.LookPath("chrt"); err != nil {
		t.Skip("needs chrt of util-linux")
	}
	require.Equal(t, "policy "+strconv.Itoa(unix.SCHED_BATCH), run(0, "chrt", "-b", "0", exe))
	require.Contains(t, run(0, "chrt", "-i", "0", exe), "the process has the policy 5 already")
	require.Contains(t, run(0, "nice", "-n", "-40", exe), "a nice value below 0")
}

func limitOfNice(t *testing.T) uint64 {
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NICE, &l))
	return l.Cur
}

// copyFor makes a program that everybody may run.
func copyFor(t *testing.T, exe string) string {
	dir, err := os.MkdirTemp("", "schedidle")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	to := filepath.Join(dir, "test")
	require.NoError(t, os.WriteFile(to, b, 0o755))
	return to
}

// TestDue: a thread that does nothing keeps the policy for some laps, but for two at most when somebody waits for it: for a request that it has taken, or that there is for it, or
// for an answer that the kernel has not passed on.
func TestDue(t *testing.T) {
	var word, head, tail uint32
	for what, set := range map[string]func(s *slot){
		"nobody":      func(*slot) {},
		"it is busy":  func(s *slot) { s.busy.Store(1) },
		"a request":   func(*slot) { word = 2 },
		"an answer":   func(*slot) { tail = 8 },
		"another bit": func(*slot) { word = 4 },
	} {
		word, head, tail = 0, 7, 7
		g := &Group{slots: make([]slot, 1)}
		g.active.Store(1)
		s := &g.slots[0]
		s.tid, s.due = int32(unix.Getpid()), Due{Word: &word, Mask: 2, Head: &head, Tail: &tail}
		s.state.Store(idle)
		set(s)
		laps := 0
		for ; s.state.Load() == idle; laps++ {
			g.look(s)
		}
		require.EqualValues(t, normal, s.state.Load())
		require.Zero(t, g.active.Load())
		want := 2
		if what == "nobody" || what == "another bit" {
			want = quiet
		}
		require.Equal(t, want, laps, what)
	}
	require.EqualValues(t, 128, unsafe.Sizeof(slot{}))
}
