package devfuse

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// anyReader may run on every CPU of the test.
func anyReader() *reader {
	r := &reader{idle: new(schedidle.Thread)}
	r.thread.Begin()
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
	saw := func(q request) {
		if p.saw(q) {
			p.ask(r, q.thread)
		}
	}
	followed := func() bool { return p.cpu.Load() != anywhere }

	reset()
	for range look - 1 {
		saw(request{thread: self})
	}
	require.False(t, followed(), "too few to tell")
	saw(request{thread: self})
	require.True(t, followed())
	for range 3 * look {
		saw(request{together: true}) // the kernel's own
	}
	require.True(t, followed())
	for i := range look {
		saw(request{thread: self, together: i%2 == 0})
	}
	require.False(t, followed(), "requests at the same time")
	for range look {
		saw(request{thread: self})
	}
	require.True(t, followed())
	for range look {
		saw(request{thread: self})
		saw(request{large: true})
	}
	require.False(t, followed(), "beside what the kernel writes back")

	reset()
	for _, threads := range []int{2, 3, 5, 8, 100} {
		for range look {
			saw(request{thread: self})
		}
		require.True(t, followed())
		for i := range 2 * look {
			saw(request{thread: self + uint32(i%threads)*1e6})
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
		saw(request{thread: thread})
	}
	require.True(t, followed(), "a program and its children")

	reset()
	for i := range 2 * look {
		saw(request{thread: self, at: time.Duration(i) * lookIn})
	}
	require.False(t, followed(), "a program with few requests")
	reset()
	r.thread = affinity.Thread{}
	for range 2 * look {
		saw(request{thread: self})
	}
	require.False(t, followed(), "a CPU that the daemon may not use")
	r = anyReader()
	reset()
	p.never = true
	for range 2 * look {
		saw(request{thread: self})
	}
	require.False(t, followed(), "threads that /proc does not have")
}

// TestMoves: without SCHED_IDLE a program is followed, too, unless it is elsewhere each time, since the kernel wakes it on a CPU that stands idle.
func TestMoves(t *testing.T) {
	var at, asked int
	moves := false
	defer func(old func(uint32) (int, bool)) { whereRuns = old }(whereRuns)
	runtime.LockOSThread() // for good: the thread ends with where it is bound
	r := anyReader()
	r.idle, r.t = nil, &Transport{sched: make([]schedidle.CPU, maxCPUs)}
	for !r.thread.May(at) {
		at++
	}
	first, second := at, at+1
	for ; second < maxCPUs && !r.thread.May(second); second++ {
	}
	whereRuns = func(uint32) (int, bool) {
		asked++
		if moves {
			at = first + second - at
		}
		return at, true
	}
	p := &r.t.program
	p.cpu.Store(anywhere)
	work := func(looks int) (followed int) {
		for range looks * look {
			if p.saw(request{thread: 1, away: true}) {
				p.ask(r, 1)
			}
			if r.idle == nil {
				r.place()
				require.Equal(t, int(p.cpu.Load()), r.thread.CPU())
			}
			if p.cpu.Load() != anywhere {
				followed++
			}
		}
		return followed
	}
	require.Equal(t, 3*look+1, work(4), "from the first look on")
	require.Equal(t, at, r.thread.CPU())
	if second == maxCPUs {
		t.Skip("SKIPPED: needs two CPUs")
	}
	moves, asked = true, 0
	work(1)
	require.Less(t, work(10*moveRest), 10*look)
	require.Less(t, asked, 20*mostMoves)
	moves = false
	work(2 * moveRest)
	require.Equal(t, look, work(1), "it stays")
	p.plain = true
	require.Less(t, work(4*moveRest), 8*look, "where each request comes late it gains nothing")
	p.plain = false
	work(2 * moveRest)
	moves, r.idle = true, new(schedidle.Thread)
	require.Equal(t, 4*moveRest*look, work(4*moveRest), "with SCHED_IDLE it is followed wherever it goes")
}
