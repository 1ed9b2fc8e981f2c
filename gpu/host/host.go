// Package host is the gpu.Runtime without a GPU: kernels run on the CPU, on the thread that launches them.
//
// It is LaneFS's default and every test's runtime, so it behaves as a GPU does wherever it can. Device memory is memfds:
// exportable, importable, growing in place under a reserved address range, and of limited size. Host memory is
// anonymous. An address is the same for the CPU and for kernels, yet only addresses inside live memory are accepted by
// copies. A module is a shared object in a memfd of its own, bound by purego; launching is one call into it.
package host

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu"
	"golang.org/x/sys/unix"
)

// granularity of ranges, in bytes: what GPUs have, so that code above meets it here first.
const granularity = 2 << 20

// Options are what can be chosen of the device; the zero value is good.
type Options struct {
	// Memory is how many bytes of device memory there are. 0 is as much as the machine has RAM.
	Memory int64
	// Bank is where device memory is taken from, instead of memfds; Memory is then its size.
	Bank *Bank
	// Device tells one of several from the others, as an address tells GPUs: host:1. It is Facts.PCI.
	Device string
}

// Runtime implements gpu.Runtime.
type Runtime struct {
	facts    gpu.Facts
	bank     *bank        // nil: device memory is memfds
	used     atomic.Int64 // bytes of device memory
	modules  atomic.Int64 // open
	streams  atomic.Int64 // open
	mu       sync.RWMutex
	memories []*memory // live, ascending by address; protected by mu
	closed   bool      // protected by mu
}

// Open makes a runtime. It needs no device and fails only if the kernel refuses memfds or the options make no sense.
func Open(o Options) (*Runtime, error) {
	if o.Memory < 0 {
		return nil, fmt.Errorf("host runtime: %d bytes of device memory: must not be negative", o.Memory)
	}
	fd, err := newMemFD("lanefs-probe", 0)
	if err != nil {
		return nil, err
	}
	unix.Close(fd)
	var b *bank
	exports := []gpu.ExportKind{gpu.ExportMemFD}
	if o.Bank != nil {
		if b, err = newBank(o.Bank); err != nil {
			return nil, err
		}
		o.Memory, exports = int64(len(b.Bytes)), []gpu.ExportKind{gpu.ExportDMABUF}
	}
	if o.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return nil, fmt.Errorf("host runtime: how much memory the machine has: sysinfo: %w", err)
		}
		o.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	return &Runtime{bank: b, facts: gpu.Facts{
		Name:         "host CPU",
		PCI:          o.Device,
		Arch:         arch(),
		Runtime:      "host, " + runtime.Version(),
		Memory:       o.Memory,
		Granularity:  granularity,
		WaveSize:     1,
		Units:        runtime.NumCPU(),
		LargeBAR:     true,
		CallerDriven: true,
		Exports:      exports,
		Imports:      []gpu.ExportKind{gpu.ExportMemFD},
	}}, nil
}

// arch is what the machine calls itself, and what its kernel image is called.
func arch() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// Name implements gpu.Runtime.
func (*Runtime) Name() string { return "host" }

// Facts implements gpu.Runtime.
func (r *Runtime) Facts() gpu.Facts { return r.facts }

// Close implements gpu.Runtime. What is still open then is an error: its owner has lost track of it.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("host runtime: %w", os.ErrClosed)
	}
	r.closed = true
	if n, m, s := len(r.memories), r.modules.Load(), r.streams.Load(); n != 0 || m != 0 || s != 0 {
		return fmt.Errorf("host runtime: closed with %d memories, %d modules and %d streams still open", n, m, s)
	}
	return nil
}

// charge takes n bytes of device memory, or says that there are not so many.
func (r *Runtime) charge(n int64) error {
	used := r.used.Add(n)
	if used > r.facts.Memory {
		r.used.Add(-n)
		return fmt.Errorf("host runtime: out of device memory: asked for %d bytes, %d of %d are free", n, r.facts.Memory-(used-n), r.facts.Memory)
	}
	return nil
}
