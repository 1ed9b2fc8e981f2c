// Package slowest finds the slowest request in a Go execution trace of a mount, and says where its time went. The trace's regions are
// the operations that blockdev/latency times: a request of the kernel, and below it, in the same goroutine, what each layer did.
package slowest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/exp/trace"
)

// Request is one request of the kernel.
type Request struct {
	Name   string    // such as "fuse read"
	Began  time.Time // by the machine's clock; zero if the trace has none
	Took   time.Duration
	Steps  []Step
	States []State // in which the goroutine was, the longest first
}

// Step is an operation of a layer within the request, or a line about one.
type Step struct {
	Depth int // 0 is the request itself
	Name  string
	At    time.Duration // since the request began
	Took  time.Duration
	Note  bool // it is a line about the step above it
}

// State is how long the request's goroutine was in one state.
type State struct {
	Name string // such as "on a CPU"
	Took time.Duration
}

// Found is what a trace has.
type Found struct {
	Requests int // complete ones
	Slowest  *Request
}

// goroutine is what is known of one.
type goroutine struct {
	open   []int // steps of current that have not ended
	now    *Request
	began  trace.Time
	state  string
	since  trace.Time
	states map[string]time.Duration
}

// root is the prefix of regions that are requests.
const root = "fuse "

// Find reads a trace.
func Find(in io.Reader) (*Found, error) {
	r, err := trace.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	found := &Found{}
	all := map[trace.GoID]*goroutine{}
	of := func(id trace.GoID) *goroutine {
		g := all[id]
		if g == nil {
			g = &goroutine{}
			all[id] = g
		}
		return g
	}
	var clock *trace.ClockSnapshot
	for {
		e, err := r.ReadEvent()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the trace: %w", err)
		}
		switch e.Kind() {
		case trace.EventSync:
			if c := e.Sync().ClockSnapshot; c != nil {
				clock = c
			}
		case trace.EventStateTransition:
			if t := e.StateTransition(); t.Resource.Kind == trace.ResourceGoroutine {
				_, to := t.Goroutine()
				of(t.Resource.Goroutine()).become(stateName(to, t.Reason), e.Time())
			}
		case trace.EventLog:
			if g := all[e.Goroutine()]; g != nil && g.now != nil {
				g.now.Steps = append(g.now.Steps, Step{Depth: len(g.open), Name: e.Log().Message, At: e.Time().Sub(g.began), Note: true})
			}
		case trace.EventRegionBegin:
			of(e.Goroutine()).begin(e.Region().Type, e.Time(), clock)
		case trace.EventRegionEnd:
			g := of(e.Goroutine())
			if r := g.end(e.Region().Type, e.Time()); r != nil {
				found.Requests++
				if found.Slowest == nil || r.Took > found.Slowest.Took {
					found.Slowest = r
				}
			}
		}
	}
}

// stateName is a state in words.
func stateName(s trace.GoState, reason string) string {
	switch s {
	case trace.GoRunning:
		return "on a CPU"
	case trace.GoRunnable:
		return "waiting for a CPU"
	case trace.GoSyscall:
		return "in system calls"
	case trace.GoWaiting:
		if reason == "" {
			return "waiting"
		}
		return "waiting (" + strings.ToLower(reason) + ")"
	}
	return "elsewhere"
}

func (g *goroutine) become(state string, at trace.Time) {
	if g.now != nil {
		g.states[g.state] += at.Sub(g.since)
	}
	g.state, g.since = state, at
}

func (g *goroutine) begin(name string, at trace.Time, clock *trace.ClockSnapshot) {
	if g.now == nil {
		if !strings.HasPrefix(name, root) {
			return
		}
		g.now, g.began, g.since, g.states = &Request{Name: name}, at, at, map[string]time.Duration{}
		if g.state == "" {
			g.state = "on a CPU"
		}
		if clock != nil {
			g.now.Began = clock.Wall.Add(at.Sub(clock.Trace))
		}
	}
	g.now.Steps = append(g.now.Steps, Step{Depth: len(g.open), Name: name, At: at.Sub(g.began)})
	g.open = append(g.open, len(g.now.Steps)-1)
}

// end ends the innermost region of a name, and returns the request if it was its last.
func (g *goroutine) end(name string, at trace.Time) *Request {
	for i := len(g.open) - 1; i >= 0; i-- {
		s := &g.now.Steps[g.open[i]]
		if s.Name != name {
			continue
		}
		s.Took = at.Sub(g.began) - s.At
		g.open = g.open[:i]
		if i > 0 {
			return nil
		}
		r := g.now
		r.Took = s.Took
		g.become(g.state, at)
		for n, d := range g.states {
			r.States = append(r.States, State{n, d})
		}
		sortStates(r.States)
		g.now, g.open = nil, nil
		return r
	}
	return nil
}
