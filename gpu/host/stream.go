package host

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/ccall"
)

// maxArgs is more than any kernel takes.
const maxArgs = 16

// stream is a gpu.Stream. Everything is done on the caller's thread before the call returns, so nothing is ever queued.
// One launch at a time; lanes that are to step at once have a stream each.
type stream struct {
	r      *Runtime
	mu     sync.Mutex
	closed bool            // protected by mu
	dims   [6]uint32       // of the launch that runs; protected by mu
	args   [maxArgs]uint64 // likewise
	call   ccall.Call      // of a kernel: here, so that a launch allocates nothing; protected by mu
}

// NewStream implements gpu.Runtime.
func (r *Runtime) NewStream() (gpu.Stream, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil, fmt.Errorf("host runtime: %w", os.ErrClosed)
	}
	r.streams.Add(1)
	return &stream{r: r}, nil
}

// Launch implements gpu.Stream: one call into the image, whatever the grid. A caller that passes a slice of its own as
// args... allocates nothing.
func (s *stream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	fn, ok := f.(*function)
	if !ok {
		return fmt.Errorf("host runtime: launch %q: the function belongs to another runtime", f.Name())
	}
	if grid.X == 0 || grid.Y == 0 || grid.Z == 0 || block.X == 0 || block.Y == 0 || block.Z == 0 {
		return fmt.Errorf("host runtime: launch %q: empty grid %v or block %v", fn.name, grid, block)
	}
	if len(args) > maxArgs {
		return fmt.Errorf("host runtime: launch %q: %d arguments, at most %d", fn.name, len(args), maxArgs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fn.m.calls.RLock()
	defer fn.m.calls.RUnlock()
	if s.closed || fn.m.closed.Load() {
		return fmt.Errorf("host runtime: launch %q: %w", fn.name, os.ErrClosed)
	}
	s.dims = [6]uint32{grid.X, grid.Y, grid.Z, block.X, block.Y, block.Z}
	copy(s.args[:], args)
	s.call.Do(fn.entry, uintptr(unsafe.Pointer(&s.dims)), uintptr(unsafe.Pointer(&s.args)))
	runtime.KeepAlive(s)
	return nil
}

// Copy implements gpu.Stream. Source and destination may overlap.
func (s *stream) Copy(dst, src gpu.Addr, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r.mu.RLock()
	defer s.r.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("host runtime: copy: %w", os.ErrClosed)
	}
	to, err := s.r.bytesLocked(dst, n)
	if err != nil {
		return err
	}
	from, err := s.r.bytesLocked(src, n)
	if err != nil {
		return err
	}
	copy(to, from)
	return nil
}

// Fill implements gpu.Stream.
func (s *stream) Fill(dst gpu.Addr, v byte, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r.mu.RLock()
	defer s.r.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("host runtime: fill: %w", os.ErrClosed)
	}
	to, err := s.r.bytesLocked(dst, n)
	if err != nil || n == 0 {
		return err
	}
	if v == 0 {
		clear(to)
		return nil
	}
	to[0] = v
	for done := 1; done < len(to); done *= 2 {
		copy(to[done:], to[:done])
	}
	return nil
}

// Done implements gpu.Stream.
func (s *stream) Done() (bool, error) { return true, s.Wait(0) }

// Wait implements gpu.Stream.
func (s *stream) Wait(time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("host runtime: wait: %w", os.ErrClosed)
	}
	return nil
}

// Close implements gpu.Stream.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("host runtime: stream: %w", os.ErrClosed)
	}
	s.closed = true
	s.r.streams.Add(-1)
	return nil
}
