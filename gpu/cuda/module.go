package cuda

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
	r      *Runtime
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

// Load implements gpu.Runtime: image is PTX, which the driver compiles for the device, or a cubin.
func (r *Runtime) Load(image []byte) (gpu.Module, error) {
	isPTX := bytes.Contains(image[:min(len(image), 4096)], []byte(".version"))
	if !isPTX && !bytes.HasPrefix(image, []byte("\x7fELF")) {
		return nil, fmt.Errorf("cuda runtime: load: an image of %d bytes that is neither PTX nor a cubin", len(image))
	}
	image = append(bytes.Clone(image), 0) // PTX is a C string
	m := &module{r: r}
	if err := r.do("cuModuleLoadData", r.lib.moduleLoadData, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&image[0]))); err != nil {
		return nil, fmt.Errorf("cuda runtime: load the kernels for %s: %w", r.facts.Arch, err)
	}
	runtime.KeepAlive(image)
	if err := m.loadAll(); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda runtime: load the kernels for %s: %w", r.facts.Arch, err),
			r.do("cuModuleUnload", r.lib.moduleUnload, m.handle))
	}
	r.modules.Add(1)
	return m, nil
}

// loadAll loads every function now, where the driver would leave it to the first launch.
func (m *module) loadAll() error {
	l := m.r.lib
	if l.moduleGetFunctionCount == 0 || l.moduleEnumerateFunctions == 0 || l.funcLoad == 0 {
		return nil
	}
	var n uint32
	if err := m.r.do("cuModuleGetFunctionCount", l.moduleGetFunctionCount, uintptr(unsafe.Pointer(&n)), m.handle); err != nil || n == 0 {
		return err
	}
	all := make([]uintptr, n)
	if err := m.r.do("cuModuleEnumerateFunctions", l.moduleEnumerateFunctions, uintptr(unsafe.Pointer(&all[0])), uintptr(n), m.handle); err != nil {
		return err
	}
	for _, f := range all {
		if err := m.r.do("cuFuncLoad", l.funcLoad, f); err != nil {
			return err
		}
	}
	return nil
}

// Function implements gpu.Module.
func (m *module) Function(name string) (gpu.Function, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, fmt.Errorf("cuda runtime: function %q: module: %w", name, os.ErrClosed)
	}
	f := &function{m: m, name: name}
	c := append([]byte(name), 0)
	if err := m.r.do("cuModuleGetFunction", m.r.lib.moduleGetFunction, uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(&c[0]))); err != nil {
		return nil, fmt.Errorf("cuda runtime: no kernel %q in the module: %w", name, err)
	}
	return f, nil
}

// Close implements gpu.Module. It waits for kernels that run.
func (m *module) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("cuda runtime: module: %w", os.ErrClosed)
	}
	m.closed = true
	m.r.modules.Add(-1)
	if err := m.r.do("cuModuleUnload", m.r.lib.moduleUnload, m.handle); err != nil {
		return fmt.Errorf("cuda runtime: unload the kernels: %w", err)
	}
	return nil
}
