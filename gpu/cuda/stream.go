package cuda

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
)

// maxArgs is more than any kernel takes.
const maxArgs = 16

// stream is a gpu.Stream.
type stream struct {
	r      *Runtime
	mu     sync.Mutex
	handle uintptr
	closed bool             // protected by mu
	args   [maxArgs]uint64  // of the launch being made; protected by mu
	params [maxArgs]uintptr // the addresses of args: here, so that a launch allocates nothing
}

// NewStream implements gpu.Runtime. The stream does not synchronise with the default stream.
func (r *Runtime) NewStream() (gpu.Stream, error) {
	s := &stream{r: r}
	if err := r.do("cuStreamCreate", r.lib.streamCreate, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking); err != nil {
		return nil, fmt.Errorf("cuda runtime: stream: %w", err)
	}
	for i := range s.args {
		s.params[i] = uintptr(unsafe.Pointer(&s.args[i]))
	}
	r.streams.Add(1)
	return s, nil
}

// Launch implements gpu.Stream.
func (s *stream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	fn, ok := f.(*function)
	if !ok || fn.m.r.lib != s.r.lib {
		return fmt.Errorf("cuda runtime: launch %q: the function belongs to another runtime", f.Name())
	}
	if grid.X == 0 || grid.Y == 0 || grid.Z == 0 || block.X == 0 || block.Y == 0 || block.Z == 0 {
		return fmt.Errorf("cuda runtime: launch %q: empty grid %v or block %v", fn.name, grid, block)
	}
	if len(args) > maxArgs {
		return fmt.Errorf("cuda runtime: launch %q: %d arguments, at most %d", fn.name, len(args), maxArgs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fn.m.mu.RLock()
	defer fn.m.mu.RUnlock()
	if s.closed || fn.m.closed {
		return fmt.Errorf("cuda runtime: launch %q: %w", fn.name, os.ErrClosed)
	}
	copy(s.args[:], args) // the driver copies them before it returns
	err := s.r.do("cuLaunchKernel", s.r.lib.launchKernel, fn.handle,
		uintptr(grid.X), uintptr(grid.Y), uintptr(grid.Z), uintptr(block.X), uintptr(block.Y), uintptr(block.Z),
		0, s.handle, uintptr(unsafe.Pointer(&s.params[0])), 0)
	runtime.KeepAlive(s)
	if err != nil {
		return fmt.Errorf("cuda runtime: launch %q: %w", fn.name, err)
	}
	return nil
}

// Copy implements gpu.Stream.
func (s *stream) Copy(dst, src gpu.Addr, n int64) error {
	if n < 0 {
		return fmt.Errorf("cuda runtime: copy of %d bytes: must not be negative", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("cuda runtime: copy: %w", os.ErrClosed)
	}
	if n == 0 {
		return nil
	}
	if err := s.r.do("cuMemcpyAsync", s.r.lib.memcpyAsync, uintptr(dst), uintptr(src), uintptr(n), s.handle); err != nil {
		return fmt.Errorf("cuda runtime: copy %d bytes from %#x to %#x: %w", n, uint64(src), uint64(dst), err)
	}
	return nil
}

// Fill implements gpu.Stream.
func (s *stream) Fill(dst gpu.Addr, v byte, n int64) error {
	if n < 0 {
		return fmt.Errorf("cuda runtime: fill of %d bytes: must not be negative", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("cuda runtime: fill: %w", os.ErrClosed)
	}
	if n == 0 {
		return nil
	}
	if err := s.r.do("cuMemsetD8Async", s.r.lib.memsetD8Async, uintptr(dst), uintptr(v), uintptr(n), s.handle); err != nil {
		return fmt.Errorf("cuda runtime: fill %d bytes at %#x: %w", n, uint64(dst), err)
	}
	return nil
}

// Done implements gpu.Stream. An error of an earlier launch shows here, and stays: the context is lost with it.
func (s *stream) Done() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, fmt.Errorf("cuda runtime: stream: %w", os.ErrClosed)
	}
	code, err := s.r.status("cuStreamQuery", s.r.lib.streamQuery, s.handle)
	switch {
	case err != nil:
		return false, fmt.Errorf("cuda runtime: %w", err)
	case code == notReady:
		return false, nil
	case code != success:
		return false, fmt.Errorf("cuda runtime: %w", s.r.lib.check("a kernel or copy", code))
	}
	return true, nil
}

// Wait implements gpu.Stream by asking again and again: the driver's own waits have no deadline.
func (s *stream) Wait(timeout time.Duration) error {
	start := time.Now()
	for round := 0; ; round++ {
		done, err := s.Done()
		if done || err != nil {
			return err
		}
		since := time.Since(start)
		switch {
		case since > timeout:
			return fmt.Errorf("cuda runtime: work on the stream has not finished after %v: %w", timeout, os.ErrDeadlineExceeded)
		case since < 100*time.Microsecond:
			runtime.Gosched()
		case since < 20*time.Millisecond:
			time.Sleep(20 * time.Microsecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// Close implements gpu.Stream. Work that is queued still runs; its stream's resources go when it has ended.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("cuda runtime: stream: %w", os.ErrClosed)
	}
	s.closed = true
	s.r.streams.Add(-1)
	if err := s.r.do("cuStreamDestroy", s.r.lib.streamDestroy, s.handle); err != nil {
		return fmt.Errorf("cuda runtime: close a stream: %w", err)
	}
	return nil
}
