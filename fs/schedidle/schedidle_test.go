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

	"github.com/lanefs/lanefs/fs/affinity"
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
			a.t.Took(0)
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

// TestResume: a pause ends when others have not kept a thread from running, for a part of it that grows with it.
func TestResume(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := &Group{slots: make([]slot, 1)}
	thread := g.Add(new(CPU), Due{})
	now := time.Hour
	pause := func(d time.Duration) {
		thread.cpu.pause.Store(int64(d))
		thread.cpu.notBefore.Store(int64(now + d))
	}
	// As if others had kept the thread from running for so long while its requests took as long as that.
	ends := func(took, kept time.Duration) bool {
		_, k, ok := thread.s.files.schedstat.times()
		require.True(t, ok)
		thread.kept = k - kept
		thread.resume(now, took)
		return int64(now) >= thread.cpu.notBefore.Load()
	}
	const much = time.Hour / 2 // however busy the machine is
	pause(calmShare * much)
	require.False(t, ends(much-time.Millisecond, 0), "it is too early to say")
	require.True(t, ends(time.Millisecond, 0))
	require.Zero(t, thread.calm)
	pause(calmShare * much)
	require.False(t, ends(much, much/calmKept), "others compute")
	require.False(t, ends(much/2, 0))
	require.False(t, ends(much/2, much/calmKept), "not all the time")
	require.False(t, ends(much/2, 0))
	require.True(t, ends(much/2, much/calmKept-much/100))
	pause(firstPause)
	require.False(t, ends(calmFor-1, 0), "a short one ends by itself")
	require.NotZero(t, thread.calm)
}

// TestLetGo: a thread that loses the policy may run elsewhere than on the CPU to which it bound itself, but for one that somebody else has bound.
func TestLetGo(t *testing.T) {
	g := newGroup(t, 1)
	for _, foreign := range []bool{false, true} {
		var got bool
		var now, want unix.CPUSet
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // for good: the thread ends with what it was given
			var b affinity.Thread
			b.Begin()
			_ = unix.SchedGetaffinity(0, &want)
			cpu := 0
			for !b.May(cpu) {
				cpu++
			}
			if !b.Bind(cpu) {
				return
			}
			if foreign {
				_ = unix.SchedGetaffinity(0, &want)
				b = affinity.Thread{} // somebody else has bound it
			}
			thread := g.Add(new(CPU), Due{Bound: &b})
			defer thread.Remove()
			end := time.Now().Add(time.Minute)
			for !got && time.Now().Before(end) {
				thread.Took(0)
				thread.Answered()
				got = thread.Idle()
			}
			for thread.s.state.Load() != normal && time.Now().Before(end) {
				time.Sleep(time.Millisecond)
			}
			_ = unix.SchedGetaffinity(0, &now)
		}()
		<-done
		require.True(t, got, "it does not get the policy")
		require.Equal(t, want, now)
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
				thread.Took(0)
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
		none.Took(0)
		none.Answered()
		none.Leave()
		none.Remove()
	}
}

// TestDescriptors: where there are no descriptors a thread is left as it is, and none is held.
func TestDescriptors(t *testing.T) {
	g := newGroup(t, 1)
	a := answer(t, g, new(CPU), someCPU(t))
	eventually(t, "many requests", func() bool { return a.policy(t) == unix.SCHED_IDLE })
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		require.NotContains(t, to, "stat", "its file is closed again")
	}
	a.end()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	times := g.Stats().Times
	b := answer(t, g, new(CPU), someCPU(t))
	eventually(t, "many requests of another", func() bool { return b.taken.Load() > 10*many })
	b.end()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.Equal(t, times, g.Stats().Times)
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
			thread.Took(0)
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

// TestDue: a thread that does nothing keeps the policy for some laps, but for two or three at most when somebody waits for it: for a request that it has taken, that there is for it, or that
// it has got and not seen, or for an answer that the kernel has not passed on.
func TestDue(t *testing.T) {
	cat := exec.Command("cat") // which waits
	in, err := cat.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cat.Start())
	sleeping := &files{stat: pathOf(uint32(cat.Process.Pid), "stat")}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	running := &files{stat: pathOf(uint32(unix.Gettid()), "stat")}
	eventually(t, "it waits", func() bool { return !sleeping.stat.runs() })
	require.True(t, running.stat.runs())
	require.False(t, (&taskPath{}).runs())
	var word, head, tail, given, seen uint32
	for what, c := range map[string]struct {
		set  func(s *slot)
		laps int
	}{
		"nobody":                            {func(*slot) {}, quiet},
		"it answers":                        {func(s *slot) { s.phase.Store(answers) }, 2},
		"a request":                         {func(*slot) { word = 2 }, 2},
		"an answer":                         {func(*slot) { tail = 8 }, 2},
		"a request that it has not seen":    {func(*slot) { given = 3 }, 2},
		"another bit":                       {func(*slot) { word = 4 }, quiet},
		"it asks, and waits":                {func(s *slot) { s.phase.Store(asks) }, quiet},
		"it asks, and has got something":    {func(s *slot) { s.phase.Store(asks); s.files = running }, 3},
		"it does not ask, and does not run": {func(s *slot) { s.files = running }, quiet},
	} {
		word, head, tail, given, seen = 0, 7, 7, 2, 2
		g := &Group{slots: make([]slot, 1)}
		g.active.Store(1)
		s := &g.slots[0]
		s.tid, s.files = int32(unix.Getpid()), sleeping
		s.due = Due{Word: &word, Mask: 2, Queues: [2]Queue{{&head, &tail}, {&seen, &given}}}
		s.state.Store(idle)
		c.set(s)
		laps := 0
		for ; s.state.Load() == idle; laps++ {
			g.look(s)
		}
		require.EqualValues(t, normal, s.state.Load())
		require.Zero(t, g.active.Load())
		require.Equal(t, c.laps, laps, what)
	}
	require.EqualValues(t, 128, unsafe.Sizeof(slot{}))
	require.NoError(t, in.Close())
	require.NoError(t, cat.Wait())
}

// asked is a program and a thread that answers it, on one CPU: the program makes a request, waits for the answer, and works.
type asked struct {
	cpu            CPU
	work           atomic.Int64 // ns
	stop           atomic.Bool
	answers        atomic.Int64
	kept           atomic.Int64 // ns, of the thread that answers
	tid            uint32       // the program's
	requests       [2]int       // a pipe
	replies        [2]int
	asks, answered chan struct{} // closed: ended
}

func ask(t *testing.T, g *Group) *asked {
	a := &asked{asks: make(chan struct{}), answered: make(chan struct{})}
	require.NoError(t, unix.Pipe2(a.requests[:], unix.O_CLOEXEC))
	require.NoError(t, unix.Pipe2(a.replies[:], unix.O_CLOEXEC))
	on, ready := someCPU(t), make(chan struct{})
	go func() {
		defer close(a.asks)
		defer unix.Close(a.requests[1])
		runtime.LockOSThread()
		bind(on)
		a.tid = uint32(unix.Gettid())
		close(ready)
		var b [1]byte
		for !a.stop.Load() {
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(a.requests[1]), uintptr(unsafe.Pointer(&b)), 1)
			_, _, _ = unix.Syscall(unix.SYS_READ, uintptr(a.replies[0]), uintptr(unsafe.Pointer(&b)), 1)
			for start := since(); since()-start < time.Duration(a.work.Load()); {
			}
		}
	}()
	<-ready
	go func() {
		defer close(a.answered)
		runtime.LockOSThread()
		bind(on)
		thread := g.Add(&a.cpu, Due{FD: int32(a.requests[0])})
		defer thread.Remove()
		var b [1]byte
		for {
			if n, _, _ := unix.Syscall(unix.SYS_READ, uintptr(a.requests[0]), uintptr(unsafe.Pointer(&b)), 1); n != 1 {
				return
			}
			thread.Took(a.tid)
			a.answers.Add(1)
			_, kept, _ := thread.s.files.schedstat.times()
			a.kept.Store(int64(kept))
			thread.Answered()
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(a.replies[1]), uintptr(unsafe.Pointer(&b)), 1)
		}
	}()
	t.Cleanup(func() {
		a.stop.Store(true)
		<-a.asks
		<-a.answered
		for _, fd := range []int{a.requests[0], a.replies[0], a.replies[1]} {
			unix.Close(fd)
		}
	})
	return a
}

// TestProgramWorks: a program that works between its requests keeps the thread that has answered from running, until that can say that it waits. That delays nobody, and is no reason for a pause.
func TestProgramWorks(t *testing.T) {
	g := newGroup(t, 1)
	a := ask(t, g)
	a.work.Store(int64(500 * time.Microsecond))
	// Other programs may do that, too. So not in each of many rounds.
	eventually(t, "a round without a pause", func() bool {
		a.cpu.notBefore.Store(0)
		before, kept, pauses := a.answers.Load(), a.kept.Load(), g.Stats().Pauses
		for a.answers.Load() < before+5*many {
			time.Sleep(time.Millisecond)
		}
		s := g.Stats()
		return s.Now == 1 && s.Pauses == pauses && time.Duration(a.kept.Load()-kept) >= 3*delayed
	})
}

// TestOthersWork: what keeps the thread from running for a little at each request, and is not the program, is a reason, though no request waits for two laps.
func TestOthersWork(t *testing.T) {
	g := newGroup(t, 1)
	ask(t, g)
	eventually(t, "many requests", func() bool { return g.Stats().Now == 1 })
	hog := make(chan struct{})
	stop := atomic.Bool{}
	go func() {
		defer close(hog)
		runtime.LockOSThread()
		bind(someCPU(t))
		for !stop.Load() {
			for start := since(); since()-start < 700*time.Microsecond; {
			}
			nap := unix.NsecToTimespec(int64(50 * time.Microsecond))
			_ = unix.Nanosleep(&nap, nil)
		}
	}()
	defer func() {
		stop.Store(true)
		<-hog
	}()
	eventually(t, "pauses", func() bool { return g.Stats().Pauses >= 3 })
}

// TestPauseOfTheGuard: where the guard has given the old policy back, there is a pause only if others kept the thread from running: not if it waited for something else.
func TestPauseOfTheGuard(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := &Group{slots: make([]slot, 1), policy: unix.SCHED_NORMAL}
	thread := g.Add(new(CPU), Due{})
	s := thread.s
	round := func(kept bool) (paused bool) {
		before := g.Stats().Pauses
		thread.asked = true
		g.active.Store(1)
		s.phase.Store(answers)
		s.late.Store(0)
		s.state.Store(idle)
		_, least, _ := s.files.schedstat.times()
		g.look(s)
		_, most, _ := s.files.schedstat.times()
		require.EqualValues(t, idle, s.state.Load())
		require.GreaterOrEqual(t, s.kept.Load(), int64(least))
		require.LessOrEqual(t, s.kept.Load(), int64(most))
		if kept {
			s.kept.Add(-int64(starved)) // as if
		}
		g.look(s)
		require.EqualValues(t, normal, s.state.Load())
		thread.Answered()
		require.False(t, thread.asked)
		return g.Stats().Pauses > before
	}
	eventually(t, "others do not keep it from running for once", func() bool { return !round(false) })
	require.True(t, round(true))
	require.Positive(t, thread.cpu.notBefore.Load())
}

// TestDelayed: what counts is for how long others than the program keep the thread from running while it answers many requests of that program.
func TestDelayed(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cat := exec.Command("cat") // which waits
	in, err := cat.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cat.Start())
	program := uint32(cat.Process.Pid)
	path := pathOf(program, "schedstat")
	runs := func() time.Duration {
		ran, _, ok := path.times()
		require.True(t, ok)
		return ran
	}
	eventually(t, "it waits", func() bool { before := runs(); time.Sleep(10 * time.Millisecond); return runs() == before })
	g := &Group{slots: make([]slot, 1)}
	thread := g.Add(new(CPU), Due{})
	// As if the program had run, and others had kept the thread from running, for so long since the requests before.
	round := func(program uint32, ran, kept time.Duration) bool {
		thread.ran -= ran
		_, k, ok := thread.s.files.schedstat.times()
		require.True(t, ok)
		thread.kept = k - kept
		return thread.delayed(program)
	}
	const much = 100 * delayed // however busy the machine is
	require.False(t, round(program, 0, much), "it is not known for how long the program has run")
	require.True(t, round(program, 0, much))
	require.False(t, round(program, 2*much, much), "the program has")
	require.True(t, round(program, much/2, much), "the program has, and others, too")
	eventually(t, "hardly at all", func() bool { return !round(program, 0, 0) && thread.program == 0 })
	require.False(t, round(program, 0, much))
	require.False(t, round(uint32(os.Getpid()), 0, much), "another program")
	require.False(t, round(0, 0, much), "none")
	require.Zero(t, thread.program)
	require.False(t, round(program, 0, much))
	require.NoError(t, in.Close())
	require.NoError(t, cat.Wait())
	require.False(t, round(program, 0, much), "it has ended")
	require.Zero(t, thread.program)
}

// TestLeaveHere: code that knows of no request ends SCHED_IDLE of the thread that it runs on, and of no other.
func TestLeaveHere(t *testing.T) {
	g := newGroup(t, 1)
	policy := func(tid int) int {
		p, _, errno := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
		require.Zero(t, errno)
		return int(p)
	}
	next, done := make(chan func()), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for f := range next {
			f()
		}
	}()
	on := func(f func()) {
		ended := make(chan struct{})
		next <- func() { defer close(ended); f() }
		<-ended
	}
	var thread *Thread
	var tid int
	on(func() { tid, thread = unix.Gettid(), g.Add(new(CPU), Due{}) })
	for left := uint64(0); left == 0; left = g.Stats().Left { // the guard may be quicker
		on(func() { thread.On(new(CPU)) })
		on(LeaveHere)
		require.Equal(t, unix.SCHED_NORMAL, policy(tid))
		require.Zero(t, g.Stats().Now)
	}
	before := g.Stats().Left
	on(LeaveHere)
	LeaveHere()
	require.Equal(t, before, g.Stats().Left, "it has it no more, and this thread is in no group")

	on(func() {
		thread.Remove()
		LeaveHere()
	})
	require.NotContains(t, here.all, int32(tid))
	require.Zero(t, g.active.Load())
	close(next)
	<-done
}
