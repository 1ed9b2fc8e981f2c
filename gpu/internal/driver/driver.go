// Package driver is a Device and its streams, modules and memory, as gpu/cuda and gpu/hip share them: AMD made HIP's calls in the image of
// CUDA's, so streams, launches, copies, modules, pinned host memory and VMM ranges are the same calls with the same arguments under other
// names.
//
// A vendor's package binds its library, fills in an API (the calls both have) and a Config (what it found out about the
// device), and gets a Device, which is a gpu.Runtime but for its name. What only one vendor has stays in its package:
// versions, words for what is missing, facts, AMD's device memory kinds and HSA calls, CUDA's lazy loading.
//
// Threads. What a vendor calls current (a CUDA context, a HIP device) belongs to a thread, and goroutines move between
// threads: Do makes it current first, by the same call into C (ccall).
//
// Arguments that point to Go memory become a uintptr in the very call of Do, Status, Early or Raw, which keep what they point to
// alive and in its place (go:uintptrescapes). The compiler sees that in direct calls only, so they are functions and methods
// of one concrete type, never a func value or an interface.
//
// A running kernel holds up calls that wait for the device, for ever if it is resident: freeing and unregistering host
// memory, unloading modules, and freeing device memory that is not a VMM range. The owner of a resident kernel parks it
// first.
package driver

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/internal/ccall"
)

// Config is what a vendor's package knows of an opened device.
type Config struct {
	API     *API
	Current uintptr // the argument of API.SetCurrent
	Facts   gpu.Facts
	Prop    AllocationProp // of VMM memory
	NoVMM   string         // why there are no VMM ranges; then Facts.Granularity is 0

	// HostFlags are the flags of API.HostAlloc for a kind. Where it is nil, host memory of every kind is ordinary pages, which are registered.
	HostFlags func(gpu.MemKind) uintptr
	// Loaded sees each module before the caller of Load does. It may be nil.
	Loaded func(d *Device, module uintptr) error
	// ExportDMABUF exports size bytes of VMM memory at addr. Where it is nil a POSIX handle is a DMA-BUF.
	ExportDMABUF func(d *Device, addr gpu.Addr, size int64) (fd int32, err error)
	// Arrived makes what other devices have written into device memory visible to kernels. It is nil where that needs nothing.
	Arrived func(d *Device) error
	Direct  bool // Arrived calls no library
	// Release lets go of the device.
	Release func() error
	// Lose has the device released as soon as a call finds it lost, and asks for that now and then. No call of the library is made after it. Host memory must not be the library's: HostFlags is nil.
	Lose bool
}

// Device is an opened device: all of gpu.Runtime but Name.
type Device struct {
	cfg    Config
	api    *API
	prefix string // begins every error

	legacies legacies
	calls    sync.Pool    // of *ccall.Call, that are not under way
	memories atomic.Int64 // open
	modules  atomic.Int64 // open
	streams  atomic.Int64 // open
	mu       sync.RWMutex // held for reading by every call, for writing by Close
	closed   bool         // protected by mu

	lost       atomic.Pointer[Error] // with Config.Lose: what the device was lost by
	released   bool                  // protected by mu
	releaseErr error                 // of the release; protected by mu
	ended      chan struct{}         // closed by Close
}

// New makes a Device.
func New(c Config) *Device {
	d := &Device{cfg: c, api: c.API, prefix: c.API.Name + " runtime", calls: sync.Pool{New: func() any { return new(ccall.Call) }}, ended: make(chan struct{})}
	if c.Lose {
		go d.watch()
	}
	return d
}

// Name implements gpu.Runtime.
func (d *Device) Name() string { return d.api.Name }

// Facts implements gpu.Runtime.
func (d *Device) Facts() gpu.Facts { return d.cfg.Facts }

// Close implements gpu.Runtime. What is still open then is an error: its owner has lost track of it.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: %w", d.prefix, os.ErrClosed)
	}
	d.closed = true
	close(d.ended)
	var errs []error
	if n, m, s := d.memories.Load(), d.modules.Load(), d.streams.Load(); n != 0 || m != 0 || s != 0 {
		errs = append(errs, fmt.Errorf("%s: closed with %d memories, %d modules and %d streams still open", d.prefix, n, m, s))
	}
	if err := d.releaseLocked(); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", d.prefix, err))
	}
	return errors.Join(errs...)
}

// Do calls c with the device current, unless the runtime is closed.
//
//go:uintptrescapes
func (d *Device) Do(c Call, args ...uintptr) error {
	code, err := d.Status(c, args...)
	if err != nil {
		return err
	}
	return d.api.Check(c.Name, code)
}

// Status is Do for calls whose result is not always an error.
//
//go:uintptrescapes
func (d *Device) Status(c Call, args ...uintptr) (int32, error) {
	if err := d.Lost(); err != nil {
		return 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return 0, fmt.Errorf("%s: %w", c.Name, os.ErrClosed)
	}
	calls.Begins(c.Name)
	call := d.calls.Get().(*ccall.Call)
	defer d.calls.Put(call)
	current, code := call.After(d.api.SetCurrent.addr, d.cfg.Current, c.addr, args...)
	if current != Success {
		return 0, d.checked(d.api.SetCurrent.Name, current)
	}
	if isLost(int(int32(code))) {
		_ = d.checked(c.Name, int32(code)) // the caller has words of its own
	}
	return int32(code), nil
}

// checked is API.Check, and notes that the device is lost.
func (d *Device) checked(call string, code int32) error {
	err := d.api.Check(call, code)
	if e, ok := err.(*Error); ok && e.lost() { //nolint:errorlint // Check's own
		d.lose(e)
	}
	return err
}

// open says whether the runtime is open, for what needs no call of the library.
func (d *Device) open() error {
	if err := d.Lost(); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return fmt.Errorf("%s: %w", d.prefix, os.ErrClosed)
	}
	return nil
}
