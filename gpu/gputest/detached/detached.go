// Package detached is the host runtime as code above sees a GPU, for tests: launches and copies return at once and run in the
// order of their stream, kernels stay resident and count by a clock of their own, and the CPU cannot address device memory.
// So what is written for GPUs is tested without one. And it fails when told to.
package detached

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels/kerneltest"
)

// Runtime implements gpu.Runtime.
type Runtime struct {
	gpu.Runtime
	facts gpu.Facts

	mu       sync.Mutex
	hung     bool      // protected by mu: no kernel begins
	woken    sync.Cond // hung has ended
	refusing bool      // protected by mu: every launch fails
	lost     bool      // protected by mu: everything fails
	launches atomic.Int64
	pending  atomic.Int64 // kernels that were launched and have not ended
	threads  atomic.Int64 // of the kernels that run
	most     atomic.Int64 // that threads has been
	visible  bool         // device memory has a CPU view after all
	host     []span       // that was ever allocated; protected by mu
}

// errLost is what a driver answers once its device has fallen off the bus.
var errLost = errors.New("detached runtime: the device is lost")

// New opens one, which its user closes. visible says that the CPU can address device memory.
func New(visible bool) (*Runtime, error) {
	rt, err := host.Open(host.Options{})
	if err != nil {
		return nil, err
	}
	hz, err := clockHz(rt)
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	d := &Runtime{Runtime: rt, facts: rt.Facts(), visible: visible}
	d.woken.L = &d.mu
	d.facts.Name, d.facts.CallerDriven, d.facts.LargeBAR, d.facts.ClockHz = "detached CPU", false, visible, hz
	return d, nil
}

// measured is the shortest time that a kernel of ticks has taken in this process, and how many were measured.
var measured struct {
	sync.Mutex
	n     int
	least time.Duration
}

// ticks is how long the kernels run by which the clock is measured.
const ticks = 2e6

// clockHz measures the clock that host kernels count by: a kernel that gives up waiting after so many ticks. It is the same for all runtimes of the process: the first
// measures it several times, each other one once more.
func clockHz(rt gpu.Runtime) (int64, error) {
	measured.Lock()
	defer measured.Unlock()
	image, err := kerneltest.Image(rt.Facts().Arch)
	if err != nil {
		return 0, err
	}
	m, err := rt.Load(image)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	s, err := rt.NewStream()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	words, err := rt.Alloc(gpu.HostMapped, 4096)
	if err != nil {
		return 0, err
	}
	defer words.Close()
	f, err := m.Function(kerneltest.EchoKernel)
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	for again := true; again && err == nil; again = measured.n < 8 { // the shortest was not interrupted
		start := time.Now()
		if err = s.Launch(f, one, one, uint64(words.Addr()), uint64(words.Addr())+64, 1, ticks); err == nil {
			if took := time.Since(start); measured.n == 0 || took < measured.least {
				measured.least = took
			}
			measured.n++
		}
	}
	if err != nil {
		return 0, err
	}
	return int64(ticks / measured.least.Seconds()), nil
}

// Name implements gpu.Runtime.
func (d *Runtime) Name() string { return "detached" }

// Facts implements gpu.Runtime.
func (d *Runtime) Facts() gpu.Facts { return d.facts }

// Hang lets no kernel begin until Resume; those that run end as they would. Refuse lets every launch fail, Lose everything.
func (d *Runtime) Hang()   { d.set(&d.hung, true) }
func (d *Runtime) Resume() { d.set(&d.hung, false) }
func (d *Runtime) Refuse() { d.set(&d.refusing, true) }
func (d *Runtime) Lose()   { d.set(&d.lost, true) }

func (d *Runtime) set(what *bool, to bool) {
	d.mu.Lock()
	*what = to
	d.woken.Broadcast()
	d.mu.Unlock()
}

// Launches is how many kernels were launched.
func (d *Runtime) Launches() int64 { return d.launches.Load() }

// Most is how many threads ran at once, Running how many kernels run now or wait to.
func (d *Runtime) Most() int64    { return d.most.Load() }
func (d *Runtime) Running() int64 { return d.pending.Load() }

func (d *Runtime) isLost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		return errLost
	}
	return nil
}

// own is memory of the device. The CPU cannot address it if it is hidden.
type own struct {
	gpu.Memory
	hidden bool
}

func (own) Reach() gpu.Reach { return gpu.Reach{Owner: gpu.OwnerDevice} }

func (m own) Host() []byte {
	if m.hidden {
		return nil
	}
	return m.Memory.Host()
}

// Alloc implements gpu.Runtime.
func (d *Runtime) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	if err := d.isLost(); err != nil {
		return nil, err
	}
	m, err := d.Runtime.Alloc(kind, size)
	if err == nil && kind.Device() {
		m = own{m, !d.visible}
	} else if err == nil {
		d.mu.Lock()
		d.host = append(d.host, span{m.Addr(), m.Host()})
		d.mu.Unlock()
	}
	return m, err
}

// span is host memory, which may be closed.
type span struct {
	at gpu.Addr
	b  []byte
}

// word is a word of host memory, the last that was allocated there.
func (d *Runtime) word(at gpu.Addr) *uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range slices.Backward(d.host) {
		if at >= s.at && at+4 <= s.at+gpu.Addr(len(s.b)) {
			return (*uint32)(unsafe.Pointer(&s.b[at-s.at]))
		}
	}
	return nil
}

// NewStream implements gpu.Runtime.
func (d *Runtime) NewStream() (gpu.Stream, error) {
	if err := d.isLost(); err != nil {
		return nil, err
	}
	inner, err := d.Runtime.NewStream()
	if err != nil {
		return nil, err
	}
	s := &stream{d: d, inner: inner}
	s.more.L = &s.mu
	go s.run()
	return s, nil
}

// stream has a goroutine that does what is queued.
type stream struct {
	d      *Runtime
	inner  gpu.Stream
	mu     sync.Mutex
	more   sync.Cond
	queue  []func() error // protected by mu; the first is under way
	failed error          // protected by mu
	closed bool           // protected by mu
}

func (s *stream) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.queue) == 0 && !s.closed {
			s.more.Wait()
		}
		if len(s.queue) == 0 {
			return
		}
		job := s.queue[0]
		s.mu.Unlock()
		err := job()
		s.mu.Lock()
		s.queue = s.queue[1:]
		if s.failed == nil {
			s.failed = err
		}
		if s.closed && len(s.queue) == 0 {
			s.inner.Close()
		}
	}
}

func (s *stream) push(job func() error) error {
	if err := s.d.isLost(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("detached runtime: stream: %w", os.ErrClosed)
	}
	s.queue = append(s.queue, job)
	s.more.Signal()
	return nil
}

// Launch implements gpu.Stream.
func (s *stream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	d := s.d
	d.mu.Lock()
	refusing := d.refusing
	d.mu.Unlock()
	if refusing {
		return fmt.Errorf("detached runtime: launch %q: out of resources", f.Name())
	}
	args = slices.Clone(args)
	threads := int64(grid.X) * int64(grid.Y) * int64(grid.Z) * int64(block.X) * int64(block.Y) * int64(block.Z)
	d.launches.Add(1)
	d.pending.Add(1)
	err := s.push(func() error {
		defer d.pending.Add(-1)
		d.mu.Lock()
		for d.hung {
			d.woken.Wait()
		}
		d.mu.Unlock()
		now := d.threads.Add(threads)
		defer d.threads.Add(-threads)
		for most := d.most.Load(); now > most && !d.most.CompareAndSwap(most, now); most = d.most.Load() {
		}
		return s.inner.Launch(f, grid, block, args...)
	})
	if err != nil {
		d.pending.Add(-1)
	}
	return err
}

// Copy implements gpu.Stream.
func (s *stream) Copy(dst, src gpu.Addr, n int64) error {
	return s.push(func() error { return s.inner.Copy(dst, src, n) })
}

// Fill implements gpu.Stream.
func (s *stream) Fill(dst gpu.Addr, v byte, n int64) error {
	return s.push(func() error { return s.inner.Fill(dst, v, n) })
}

// Mark implements gpu.Marker. A stream that has failed stores nothing.
func (s *stream) Mark(dst gpu.Addr, v uint32) error {
	return s.push(func() error {
		s.mu.Lock()
		failed := s.failed != nil
		s.mu.Unlock()
		if failed {
			return nil
		}
		word := s.d.word(dst)
		if word == nil {
			return fmt.Errorf("detached runtime: mark: no host memory at %#x", uint64(dst))
		}
		atomic.StoreUint32(word, v)
		return nil
	})
}

// Done implements gpu.Stream.
func (s *stream) Done() (bool, error) {
	if err := s.d.isLost(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, fmt.Errorf("detached runtime: stream: %w", os.ErrClosed)
	}
	return len(s.queue) == 0, s.failed
}

// Wait implements gpu.Stream.
func (s *stream) Wait(timeout time.Duration) error {
	for waited := (nap.Wait{}); ; time.Sleep(20 * time.Microsecond) {
		done, err := s.Done()
		switch {
		case done || err != nil:
			return err
		case timeout <= 0 || waited.Over(timeout):
			return fmt.Errorf("detached runtime: work on the stream has not finished after %v: %w", timeout, os.ErrDeadlineExceeded)
		}
	}
}

// Close implements gpu.Stream. What is queued still runs.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("detached runtime: stream: %w", os.ErrClosed)
	}
	s.closed = true
	s.more.Signal()
	if len(s.queue) == 0 {
		return s.inner.Close()
	}
	return nil
}
