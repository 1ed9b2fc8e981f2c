package host

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"
	"github.com/lanefs/lanefs/gpu"
	"golang.org/x/sys/unix"
)

// module is a gpu.Module: a shared object bound from a memfd.
type module struct {
	r      *Runtime
	handle uintptr
	fd     int // of the image: the loader takes a second object of the same path for the first
	closed atomic.Bool
	// calls is held for reading by every launch: code is not unmapped under a running kernel.
	calls sync.RWMutex
}

// function is a gpu.Function. In a host image a kernel is
//
//	void name(const uint32_t dims[6], const uint64_t *args);
//
// which runs all threads of the launch one after the other; dims are the grid's and the block's x, y, z
// (kernels/kernel.h).
type function struct {
	m     *module
	name  string
	entry uintptr
}

func (f *function) Name() string { return f.name }

// Load implements gpu.Runtime: image is a shared object for this machine.
func (r *Runtime) Load(image []byte) (gpu.Module, error) {
	if err := checkImage(image); err != nil {
		return nil, err
	}
	fd, err := newMemFD("lanefs-kernels", 0)
	if err != nil {
		return nil, err
	}
	if err := writeAll(fd, image); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("host runtime: load: %w", err)
	}
	handle, err := purego.Dlopen(pathOf(fd), purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("host runtime: load the kernels: %w", err)
	}
	r.modules.Add(1)
	return &module{r: r, handle: handle, fd: fd}, nil
}

// pathOf is a path to a descriptor that leads there from other processes too. A debugger opens what the loader's list names, and
// below /proc/self that was a pipe of its own, which it read for ever while every thread here was stopped. The number is
// /proc's, which may be that of another PID namespace than this process's.
func pathOf(fd int) string {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		self = "self"
	}
	return fmt.Sprintf("/proc/%s/fd/%d", self, fd)
}

// Function implements gpu.Module.
func (m *module) Function(name string) (gpu.Function, error) {
	m.calls.RLock()
	defer m.calls.RUnlock()
	if m.closed.Load() {
		return nil, fmt.Errorf("host runtime: function %q: module: %w", name, os.ErrClosed)
	}
	entry, err := purego.Dlsym(m.handle, name)
	if err != nil {
		return nil, fmt.Errorf("host runtime: no kernel %q in the module: %w", name, err)
	}
	return &function{m: m, name: name, entry: entry}, nil
}

// Close implements gpu.Module. It waits for launches that run.
func (m *module) Close() error {
	m.calls.Lock()
	defer m.calls.Unlock()
	if m.closed.Swap(true) {
		return fmt.Errorf("host runtime: module: %w", os.ErrClosed)
	}
	m.r.modules.Add(-1)
	defer unix.Close(m.fd)
	if err := purego.Dlclose(m.handle); err != nil {
		return fmt.Errorf("host runtime: unload the kernels: %w", err)
	}
	return nil
}

// checkImage says in words what the loader would put less plainly.
func checkImage(image []byte) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("host runtime: load: the image is not a shared object: %w", err)
	}
	defer f.Close()
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if f.Type != elf.ET_DYN || f.Machine != want {
		return fmt.Errorf("host runtime: load: the image is a %v for %v, not a shared object for %v", f.Type, f.Machine, want)
	}
	return nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
