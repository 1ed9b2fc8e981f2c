package driver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
)

// module is a gpu.Module.
type module struct {
	d      *Device
	mu     sync.RWMutex // held for reading by every launch, for writing by Close
	handle uintptr
	closed bool // protected by mu
}

// function is a gpu.Function.
type function struct {
	m      *module
	name   string
	handle uintptr
}

func (f *function) Name() string { return f.name }

// Fits implements gpu.Limited.
func (f *function) Fits(block gpu.Dim3) (int64, error) {
	var each int32 // on a compute unit
	d := f.m.d
	err := d.Do(d.api.Occupancy, uintptr(unsafe.Pointer(&each)), f.handle, uintptr(block.X*block.Y*block.Z), 0)
	if err != nil {
		return 0, fmt.Errorf("%s: how many blocks of %q fit: %w", d.prefix, f.name, err)
	}
	return int64(each) * int64(d.cfg.Facts.Units), nil
}

// Load implements gpu.Runtime: image is a code object (ELF) for the device, or PTX, which NVIDIA's
// driver compiles for it, behind HIP too.
func (d *Device) Load(image []byte) (gpu.Module, error) {
	isPTX := bytes.Contains(image[:min(len(image), 4096)], []byte(".version"))
	if !isPTX && !bytes.HasPrefix(image, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s: load: an image of %d bytes that is neither a code object (ELF) nor PTX", d.prefix, len(image))
	}
	image = append(bytes.Clone(image), 0) // PTX is a C string
	m := &module{d: d}
	if err := d.Do(d.api.ModuleLoad, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&image[0]))); err != nil {
		return nil, fmt.Errorf("%s: load the kernels for %s: %w", d.prefix, d.cfg.Facts.Arch, err)
	}
	runtime.KeepAlive(image)
	if d.cfg.Loaded != nil {
		if err := d.cfg.Loaded(d, m.handle); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: load the kernels for %s: %w", d.prefix, d.cfg.Facts.Arch, err),
				d.Do(d.api.ModuleUnload, m.handle))
		}
	}
	d.modules.Add(1)
	return m, nil
}

// Function implements gpu.Module.
func (m *module) Function(name string) (gpu.Function, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, fmt.Errorf("%s: function %q: module: %w", m.d.prefix, name, os.ErrClosed)
	}
	f := &function{m: m, name: name}
	c := append([]byte(name), 0)
	if err := m.d.Do(m.d.api.ModuleFunction, uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(&c[0]))); err != nil {
		return nil, fmt.Errorf("%s: no kernel %q in the module: %w", m.d.prefix, name, err)
	}
	return f, nil
}

// Close implements gpu.Module. It waits for kernels that run.
func (m *module) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("%s: module: %w", m.d.prefix, os.ErrClosed)
	}
	m.closed = true
	m.d.modules.Add(-1)
	if err := m.d.Do(m.d.api.ModuleUnload, m.handle); err != nil {
		return fmt.Errorf("%s: unload the kernels: %w", m.d.prefix, err)
	}
	return nil
}
