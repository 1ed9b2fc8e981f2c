package driver

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"structs"
	"sync"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/nap"
)

// maxArgs is more than any kernel takes.
const maxArgs = 16

// stream is a gpu.Stream.
type stream struct {
	d      *Device
	mu     sync.Mutex
	handle uintptr
	closed bool             // protected by mu
	args   [maxArgs]uint64  // of the launch being made; protected by mu
	params [maxArgs]uintptr // the addresses of args: here, so that a launch allocates nothing
	rows   rectangle        // of the copy being made; protected by mu
}

// NewStream implements gpu.Runtime. The stream does not synchronise with the default stream.
func (d *Device) NewStream() (gpu.Stream, error) {
	s := &stream{d: d}
	return s.opened(d.Do(d.api.StreamCreate, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking))
}

// NewUrgentStream implements gpu.Urgent by a stream of the highest priority. AMD's runtime has some four hardware queues for the streams
// of each priority, and every kernel there waits for those before it (the barrier bit of an AQL packet).
func (d *Device) NewUrgentStream() (gpu.Stream, error) {
	var least, most int32
	if err := d.Do(d.api.PriorityRange, uintptr(unsafe.Pointer(&least)), uintptr(unsafe.Pointer(&most))); err != nil {
		return nil, fmt.Errorf("%s: stream: %w", d.prefix, err)
	}
	s := &stream{d: d}
	return s.opened(d.Do(d.api.StreamPriority, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking, uintptr(most)))
}

// opened is the stream, if it was created.
func (s *stream) opened(err error) (gpu.Stream, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: stream: %w", s.d.prefix, err)
	}
	for i := range s.args {
		s.params[i] = uintptr(unsafe.Pointer(&s.args[i]))
	}
	s.d.streams.Add(1)
	return s, nil
}

// Launch implements gpu.Stream.
func (s *stream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	fn, ok := f.(*function)
	if !ok || fn.m.d.api != s.d.api {
		return fmt.Errorf("%s: launch %q: the function belongs to another runtime", s.d.prefix, f.Name())
	}
	if grid.X == 0 || grid.Y == 0 || grid.Z == 0 || block.X == 0 || block.Y == 0 || block.Z == 0 {
		return fmt.Errorf("%s: launch %q: empty grid %v or block %v", s.d.prefix, fn.name, grid, block)
	}
	if len(args) > maxArgs {
		return fmt.Errorf("%s: launch %q: %d arguments, at most %d", s.d.prefix, fn.name, len(args), maxArgs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fn.m.mu.RLock()
	defer fn.m.mu.RUnlock()
	if s.closed || fn.m.closed {
		return fmt.Errorf("%s: launch %q: %w", s.d.prefix, fn.name, os.ErrClosed)
	}
	copy(s.args[:], args) // the driver copies them before it returns
	err := s.d.Do(s.d.api.Launch, fn.handle,
		uintptr(grid.X), uintptr(grid.Y), uintptr(grid.Z), uintptr(block.X), uintptr(block.Y), uintptr(block.Z),
		0, s.handle, uintptr(unsafe.Pointer(&s.params[0])), 0)
	runtime.KeepAlive(s)
	if err != nil {
		return fmt.Errorf("%s: launch %q: %w", s.d.prefix, fn.name, err)
	}
	return nil
}

// takesLocked says whether a copy or fill of n bytes may be queued, and has something to do.
func (s *stream) takesLocked(what string, n int64) (some bool, err error) {
	switch {
	case n < 0:
		return false, fmt.Errorf("%s: %s of %d bytes: must not be negative", s.d.prefix, what, n)
	case s.closed:
		return false, fmt.Errorf("%s: %s: %w", s.d.prefix, what, os.ErrClosed)
	}
	return n > 0, nil
}

// Copy implements gpu.Stream.
func (s *stream) Copy(dst, src gpu.Addr, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if some, err := s.takesLocked("copy", n); err != nil || !some {
		return err
	}
	var err error
	if s.d.api.Copy2D.Have() && n >= 2 && n < inlineBelow {
		err = s.copyRowsLocked(dst, src, n)
	} else if kind := s.d.api.CopyKind; kind != 0 {
		err = s.d.Do(s.d.api.Copy, uintptr(dst), uintptr(src), uintptr(n), kind, s.handle)
	} else {
		err = s.d.Do(s.d.api.Copy, uintptr(dst), uintptr(src), uintptr(n), s.handle)
	}
	if err != nil {
		return fmt.Errorf("%s: copy %d bytes from %#x to %#x: %w", s.d.prefix, n, uint64(src), uint64(dst), err)
	}
	return nil
}

// inlineBelow is the size of copies that CUDA's driver sends along with its commands, by the engine that runs kernels: beside another
// process's kernels they wait for a turn of this process, some 2 ms (measured on an H100 with driver 580: up to 24 KiB they wait, from 28 KiB on
// they do not). A copy of two rows goes by a copy engine, which waits for nobody, and takes no longer alone.
const inlineBelow = 32 << 10

// rectangle is CUDA_MEMCPY2D of version 2.
type rectangle struct {
	_             structs.HostLayout
	_, _          uintptr // x and y
	srcType       uint32
	_             uintptr // of memory that is the host's only
	src           gpu.Addr
	_             uintptr // an array
	srcPitch      uintptr
	_, _          uintptr
	dstType       uint32
	_             uintptr
	dst           gpu.Addr
	_             uintptr
	dstPitch      uintptr
	width, height uintptr
}

// unified is CU_MEMORYTYPE_UNIFIED: the driver knows whose an address is.
const unified = 4

// copyRowsLocked is Copy as two rows, and for an odd number the last two bytes as two more.
func (s *stream) copyRowsLocked(dst, src gpu.Addr, n int64) error {
	rows := func(dst, src gpu.Addr, each int64) error {
		s.rows = rectangle{srcType: unified, src: src, srcPitch: uintptr(each), dstType: unified, dst: dst, dstPitch: uintptr(each), width: uintptr(each), height: 2}
		return s.d.Do(s.d.api.Copy2D, uintptr(unsafe.Pointer(&s.rows)), s.handle)
	}
	err := rows(dst, src, n/2)
	if last := gpu.Addr(n - 2); err == nil && n%2 != 0 {
		err = rows(dst+last, src+last, 1)
	}
	return err
}

// Fill implements gpu.Stream.
func (s *stream) Fill(dst gpu.Addr, v byte, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if some, err := s.takesLocked("fill", n); err != nil || !some {
		return err
	}
	if err := s.d.Do(s.d.api.SetD8, uintptr(dst), uintptr(v), uintptr(n), s.handle); err != nil {
		return fmt.Errorf("%s: fill %d bytes at %#x: %w", s.d.prefix, n, uint64(dst), err)
	}
	return nil
}

// Mark implements gpu.Marker.
func (s *stream) Mark(dst gpu.Addr, v uint32) error {
	if !s.d.api.WriteValue.Have() {
		return fmt.Errorf("%s: mark: %w", s.d.prefix, errors.ErrUnsupported)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%s: mark: %w", s.d.prefix, os.ErrClosed)
	}
	if err := s.d.Do(s.d.api.WriteValue, s.handle, uintptr(dst), uintptr(v), 0); err != nil {
		return fmt.Errorf("%s: mark: %w", s.d.prefix, err)
	}
	return nil
}

// Done implements gpu.Stream. An error of an earlier launch shows here, and stays: the context is lost with it.
func (s *stream) Done() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, fmt.Errorf("%s: stream: %w", s.d.prefix, os.ErrClosed)
	}
	code, err := s.d.Status(s.d.api.StreamQuery, s.handle)
	switch {
	case err != nil:
		return false, fmt.Errorf("%s: %w", s.d.prefix, err)
	case code == notReady:
		return false, nil
	case code != Success:
		return false, fmt.Errorf("%s: %w", s.d.prefix, s.d.api.Check("a kernel or copy", code))
	}
	return true, nil
}

// Wait implements gpu.Stream by asking again and again: the driver's own waits have no deadline.
func (s *stream) Wait(timeout time.Duration) error {
	done, err := wait(s.Done, timeout)
	if !done && err == nil {
		err = fmt.Errorf("%s: work on the stream has not finished after %v: %w", s.d.prefix, timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// wait asks whether something is done until it is, or fails, or timeout is spent.
func wait(isDone func() (bool, error), timeout time.Duration) (done bool, err error) {
	for waited := (nap.Wait{}); ; {
		if done, err := isDone(); done || err != nil || timeout <= 0 {
			return done, err
		}
		since := waited.Look(time.Now(), timeout)
		switch {
		case since > timeout:
			return false, nil
		case since < 100*time.Microsecond:
			runtime.Gosched()
		case since < 20*time.Millisecond:
			nap.For(20 * time.Microsecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// Synchronize waits for all that runs on the device for this process, on all streams. It has no deadline: a kernel that is
// resident must park first.
func (d *Device) Synchronize() error {
	if err := d.Do(d.api.Synchronize); err != nil {
		return fmt.Errorf("%s: %w", d.prefix, err)
	}
	return nil
}

// Close implements gpu.Stream. Work that is queued still runs; its stream's resources go when it has ended.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%s: stream: %w", s.d.prefix, os.ErrClosed)
	}
	s.closed = true
	s.d.streams.Add(-1)
	if err := s.d.Do(s.d.api.StreamDestroy, s.handle); err != nil {
		return fmt.Errorf("%s: close a stream: %w", s.d.prefix, err)
	}
	return nil
}
