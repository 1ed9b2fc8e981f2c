// Package bounded is a runtime of a GPU whose driver may hang: nobody waits for one of its calls for longer than Limit. When one has not returned by then the GPU counts as lost, no further
// call is made, and all that is asked for is an error at once, which wraps calls.ErrHangs and names the vendor's function.
//
// What a call that was given up uses is its own, and what it may give when it returns late is nobody's: memory, modules and streams of such a GPU are left until the process ends. So to
// close something gives that error too, and whoever closes it leaves what the device may still reach where it is.
//
// Calls that may wait for others than the GPU, to import what a program has exported and to register pages that a file system has yet to read, are given up, too, and no GPU counts as lost
// by that. Not bounded are the calls of a stream, which are made for every request: who drives lanes or copies has bounds of his own for them, and others ask for Stream.
package bounded

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
)

// Limit is how long a call may take: to initialise a driver takes ten seconds on a machine with many GPUs, to pin much memory as long.
const Limit = 30 * time.Second

const (
	looks   = 60 // at the time, in Limit
	hurries = 4  // likewise, once Options.Stop is closed

	closeWait = 2 * time.Second // for Close, which waits for calls that were given up
	mostOwn   = 256             // calls that may wait for others than the GPU, at a time: each that hangs has a thread
)

// Options of New. Each may be left out.
type Options struct {
	Limit time.Duration   // 0: Limit
	Stop  <-chan struct{} // closed when the user wants an end: a call that is under way then has 2 s, of 30
	Log   *slog.Logger    // of calls that return later, after all; nil: discard
}

// Runtime is a gpu.Runtime, gpu.Urgent and gpu.Losable.
type Runtime struct {
	gpu.Runtime
	o    Options
	hung atomic.Pointer[error]
	own  atomic.Int32 // calls of apart that have not returned
}

// New bounds the calls of rt.
func New(rt gpu.Runtime, o Options) *Runtime {
	if o.Limit == 0 {
		o.Limit = Limit
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Runtime{Runtime: rt, o: o}
}

// Hung is why no call is made any more, or nil.
func (r *Runtime) Hung() error {
	if p := r.hung.Load(); p != nil {
		return *p
	}
	return nil
}

// Lost implements gpu.Losable.
func (r *Runtime) Lost() error {
	if err := r.Hung(); err != nil {
		return err
	}
	if l, ok := r.Runtime.(gpu.Losable); ok {
		return l.Lost()
	}
	return nil
}

// Missing is a sentence for each thing that the runtime would use and that there is not.
func (r *Runtime) Missing() []string {
	if m, ok := r.Runtime.(interface{ Missing() []string }); ok {
		return m.Missing()
	}
	return nil
}

// within is f's result. wait is how long f itself may wait. what is said of a call that the vendor's library does not know.
func within[T any](r *Runtime, what string, wait time.Duration, f func() (T, error)) (none T, err error) {
	if err := r.Hung(); err != nil {
		return none, err
	}
	got, hung, err := call(r, what, r.o.Limit+wait, f, nil)
	if hung == nil {
		return got, err
	}
	r.hung.CompareAndSwap(nil, &hung)
	return none, r.Hung()
}

// apart is within for a call that may wait for others than the GPU, which does not count as lost if it was given up. What comes late is late's.
func apart[T any](r *Runtime, what string, f func() (T, error), late func(T)) (none T, err error) {
	if err := r.Hung(); err != nil {
		return none, err
	}
	if r.own.Add(1) > mostOwn {
		r.own.Add(-1)
		return none, fmt.Errorf("%s runtime: %s: %d such calls have not returned: %w", r.Name(), what, mostOwn, calls.ErrHangs)
	}
	got, hung, err := call(r, what, r.o.Limit, func() (T, error) {
		defer r.own.Add(-1)
		return f()
	}, func(v T, err error) {
		if err == nil {
			late(v)
		}
	})
	if hung != nil {
		return none, hung
	}
	return got, err
}

// call is f's result, or why it was given up.
func call[T any](r *Runtime, what string, limit time.Duration, f func() (T, error), late func(T, error)) (got T, hung, err error) {
	logged := calls.LogReturn[T](r.o.Log, "runtime", r.Name(), "call", what)
	got, name, err := Call(limit, r.o.Stop, nil, f, func(v T, err error) {
		logged(v, err)
		if late != nil {
			late(v, err)
		}
	})
	switch name {
	case "":
		return got, nil, err
	case Unnamed:
		name = what
	}
	return got, Hangs(r.Name(), name, limit, r.o.Stop), nil
}

// Hangs is the error of a call of a runtime's that was given up.
func Hangs(runtime, call string, limit time.Duration, stop <-chan struct{}) error {
	select {
	case <-stop:
		return fmt.Errorf("%s runtime: interrupted when %s had not returned: %w", runtime, call, calls.ErrHangs)
	default:
	}
	return fmt.Errorf("%s runtime: %s does not return, after %v: %w", runtime, call, limit, calls.ErrHangs)
}

// Unnamed is the name that Call gives of a call when the vendor's library was not called.
const Unnamed = "?"

// Call makes a call that f's goroutine alone has a part in. The name is empty if it has returned; else it was given up, and this is the vendor's function that has not returned, or Unnamed.
// on, which may be nil, says that f has got on since it was asked last, as by another call of the library: the time begins anew. stop and late are Options.Stop and what calls.Make has.
func Call[T any](limit time.Duration, stop <-chan struct{}, on func(*calls.Notes) bool, f func() (T, error), late func(T, error)) (got T, name string, err error) {
	var notes calls.Notes
	got, end, err := calls.Make(calls.Wait{Limit: limit, Step: max(limit/looks, 1), Notes: &notes, Spent: func(spent, step time.Duration) time.Duration {
		select {
		case <-stop:
			return spent + limit/hurries
		default:
		}
		if on != nil && on(&notes) {
			return 0
		}
		return spent + step
	}}, f, late)
	if end == calls.Returned {
		return got, "", err
	}
	if name, _ = notes.Last(); name == "" {
		name = Unnamed
	}
	return got, name, nil
}

func (r *Runtime) act(what string, wait time.Duration, f func() error) error {
	_, err := within(r, what, wait, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// Alloc implements gpu.Runtime, as do those below.
func (r *Runtime) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	return r.memory(within(r, "an allocation", 0, func() (gpu.Memory, error) { return r.Runtime.Alloc(kind, size) }))
}

func (r *Runtime) Reserve(size, most int64) (gpu.Range, error) {
	m, err := within(r, "a reservation", 0, func() (gpu.Range, error) { return r.Runtime.Reserve(size, most) })
	if err != nil {
		return nil, err
	}
	return ranged{m, memory{m, r}}, nil
}

// Import makes no GPU lost: it may wait for the process that has exported the memory, which may be stopped.
func (r *Runtime) Import(e gpu.Export) (gpu.Memory, error) {
	return r.imported(e, func(f func() (gpu.Memory, error)) (gpu.Memory, error) { return apart(r, "an import", f, closed) })
}

// imported is an import by way of made. The caller closes his descriptor, which the call may outlast.
func (r *Runtime) imported(e gpu.Export, made func(f func() (gpu.Memory, error)) (gpu.Memory, error)) (gpu.Memory, error) {
	fd, err := unix.FcntlInt(uintptr(e.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	e.FD = fd
	var taken atomic.Bool // the descriptor: by the call, or by who finds that it was not made
	m, err := made(func() (gpu.Memory, error) {
		if taken.Swap(true) {
			return nil, os.ErrClosed
		}
		defer unix.Close(fd)
		return r.Runtime.Import(e)
	})
	if err != nil && !taken.Swap(true) {
		unix.Close(fd)
	}
	return r.memory(m, err)
}

// closed closes what has come too late. Nothing can be done about an error: the memory is left.
func closed(m gpu.Memory) { _ = m.Close() }

// Register of pages of a file makes no GPU lost: it may wait for the file system.
func (r *Runtime) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	f := func() (gpu.Memory, error) { return r.Runtime.Register(b, as) }
	if as == gpu.RegisteredReadOnly {
		return r.memory(apart(r, "a registration of pages", f, closed))
	}
	return r.memory(within(r, "a registration", 0, f))
}

func (r *Runtime) Load(image []byte) (gpu.Module, error) {
	m, err := within(r, "a load of kernels", 0, func() (gpu.Module, error) { return r.Runtime.Load(image) })
	if err != nil {
		return nil, err
	}
	return module{m, r}, nil
}

func (r *Runtime) NewStream() (gpu.Stream, error) {
	return within(r, "the call for a stream", 0, r.Runtime.NewStream)
}

// NewUrgentStream implements gpu.Urgent.
func (r *Runtime) NewUrgentStream() (gpu.Stream, error) {
	return within(r, "the call for a stream", 0, func() (gpu.Stream, error) { return gpu.NewUrgentStream(r.Runtime) })
}

// Close waits for calls that are under way. Those that were given up may wait for others for ever, and no GPU need hang for that.
func (r *Runtime) Close() error {
	if r.own.Load() == 0 || r.Hung() != nil {
		return r.act("the end of the device", 0, r.Runtime.Close)
	}
	_, hung, err := call(r, "the end of the device", min(closeWait, r.o.Limit), func() (struct{}, error) { return struct{}{}, r.Runtime.Close() }, nil)
	if hung != nil {
		return hung
	}
	return err
}

func (r *Runtime) memory(m gpu.Memory, err error) (gpu.Memory, error) {
	if err != nil {
		return nil, err
	}
	return memory{m, r}, nil
}

type memory struct {
	gpu.Memory
	r *Runtime
}

// Reach has a keeper that is bounded, too, unless it calls no driver.
func (m memory) Reach() gpu.Reach {
	at := m.Memory.Reach()
	if _, direct := at.Keeper.(gpu.Direct); at.Keeper != nil && !direct {
		at.Keeper = keeper{at.Keeper, m.r}
	}
	return at
}

func (m memory) Export(want gpu.ExportKind) (gpu.Export, error) {
	return within(m.r, "an export", 0, func() (gpu.Export, error) { return m.Memory.Export(want) })
}

func (m memory) Close() error { return m.r.act("the release of memory", 0, m.Memory.Close) }

// ranged is a gpu.Range, whose memory is bounded.
type ranged struct {
	gpu.Range
	m memory
}

func (m ranged) Reach() gpu.Reach                               { return m.m.Reach() }
func (m ranged) Export(want gpu.ExportKind) (gpu.Export, error) { return m.m.Export(want) }
func (m ranged) Close() error                                   { return m.m.Close() }

func (m ranged) Grow(size int64) error {
	return m.m.r.act("the growth of memory", 0, func() error { return m.Range.Grow(size) })
}

type module struct {
	gpu.Module
	r *Runtime
}

func (m module) Function(name string) (gpu.Function, error) {
	return within(m.r, "the search for a kernel", 0, func() (gpu.Function, error) { return m.Module.Function(name) })
}

func (m module) Close() error { return m.r.act("the unload of kernels", 0, m.Module.Close) }

// keeper is a gpu.Keeper of memory of r.
type keeper struct {
	gpu.Keeper
	r *Runtime
}

func (k keeper) Arrived() error {
	return k.r.act("a flush of what was written into the device's memory", 0, k.Keeper.Arrived)
}
