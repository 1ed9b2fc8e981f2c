package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/kernels"
)

// gpuRuntime is a gpu.Runtime that may lack something.
type gpuRuntime interface {
	gpu.Runtime
	Missing() []string // a sentence for each thing that it would use
}

// gpus are the runtimes of GPUs, in the order in which auto tries them.
var gpus = []struct {
	name string
	open func(which string) (gpuRuntime, error)
}{
	{"hip", func(which string) (gpuRuntime, error) { return opened(hip.Open(hip.Options{Device: which})) }},
	{"cuda", func(which string) (gpuRuntime, error) { return opened(cuda.Open(cuda.Options{Device: which})) }},
}

// opened turns a nil *T into a nil runtime.
func opened[T gpuRuntime](rt T, err error) (gpuRuntime, error) {
	if err != nil {
		return nil, err
	}
	return rt, nil
}

// openHost opens the host runtime; after an error the interface is nil, too.
func openHost(o host.Options) (gpu.Runtime, error) {
	rt, err := host.Open(o)
	if err != nil {
		return nil, err
	}
	return rt, nil
}

// openRuntime opens what --gpu names. Where another function's BAR is the device memory, that is the host runtime.
func (c *drive) openRuntime(cfg *mountConfig, log *slog.Logger) (err error) {
	if cfg.VRAM == "" {
		return c.openGPUs(cfg, log)
	}
	switch {
	case !isFunction(cfg.Device):
		return errors.New("--vram is for a PCI function: an image file's controller reaches the runtime's own memory")
	case cfg.GPU == "hip" || cfg.GPU == "cuda":
		return fmt.Errorf("--vram %s is for --gpu host: the lanes of --gpu %s have the GPU's own memory", cfg.VRAM, cfg.GPU)
	case len(cfg.GPUs) > 1:
		return errors.New("--vram is one memory: --gpu host")
	case cfg.GPU != "host":
		onCPU(log, "with --vram they do")
	}
	if c.bar, err = openBARMemory(cfg, log); err != nil {
		return err
	}
	rt, err := openHost(host.Options{Bank: c.bar.bank()})
	if err != nil {
		return err
	}
	c.rt = rt
	return nil
}

// openGPUs opens what --gpu names: one runtime, or several of a kind.
func (c *drive) openGPUs(cfg *mountConfig, log *slog.Logger) error {
	seen := map[string]string{}
	for i, which := range cfg.GPUs {
		rt, err := openOne(cfg.GPU, which, len(cfg.GPUs) > 1, log, cfg.stop)
		if err != nil {
			return fmt.Errorf("--gpu %s:%s: %w", cfg.GPU, which, err)
		}
		if i == 0 {
			c.rt = rt
		} else {
			c.more = append(c.more, rt)
		}
		facts := rt.Facts()
		if other, twice := seen[facts.Identity()]; twice {
			return fmt.Errorf("--gpu %s:%s is the same device as %s:%s: %s", cfg.GPU, which, cfg.GPU, other, facts.Identity())
		}
		seen[facts.Identity()] = which
	}
	if len(cfg.GPUs) > 0 {
		return nil
	}
	rt, err := openNamed(cfg.GPU, log, cfg.stop)
	c.rt = rt
	return err
}

// openOne opens one of a runtime's devices. Of a host runtime there are as many as are asked for.
func openOne(name, which string, several bool, log *slog.Logger, stop <-chan struct{}) (gpu.Runtime, error) {
	if name == "host" {
		o := host.Options{}
		if several {
			o.Device = "host:" + which
		}
		return openHost(o)
	}
	for _, g := range gpus {
		if g.name == name {
			return openGPU(g.name, which, g.open, log, stop)
		}
	}
	return nil, fmt.Errorf("no runtime %q", name)
}

// openNamed opens what --gpu names. auto takes a GPU if there is one that works, else the CPU, and says why.
func openNamed(name string, log *slog.Logger, stop <-chan struct{}) (gpu.Runtime, error) {
	if name == "host" {
		return openHost(host.Options{})
	}
	auto := name == "auto" || name == ""
	var why []string
	hangs := false
	for _, g := range gpus {
		if !auto && g.name != name {
			continue
		}
		rt, err := openGPU(g.name, "", g.open, log, stop)
		if err == nil {
			return rt, nil
		}
		if errors.Is(err, calls.ErrHangs) && isClosed(stop) {
			return nil, err
		}
		if !auto {
			return nil, fmt.Errorf("%w; gpu=auto takes what works, and lanefs doctor says more", err)
		}
		why = append(why, oneLine(err))
		hangs = hangs || errors.Is(err, calls.ErrHangs)
	}
	if !auto {
		return nil, fmt.Errorf("--gpu %q: want auto, host, hip or cuda", name)
	}
	if hangs { // which is no way for a GPU to be missing
		log.Warn("the lanes run on the CPU", "why", strings.Join(why, "; "))
	} else {
		onCPU(log, strings.Join(why, "; "))
	}
	return openHost(host.Options{})
}

// onCPU logs why auto takes no GPU.
func onCPU(log *slog.Logger, why string) { log.Info("the lanes run on the CPU", "why", why) }

// openTimeout is how long the driver may take from one call to the next, and for each call after that; tests shorten it.
var openTimeout = bounded.Limit

// hungGPUs says why a GPU that the process has opened hangs, as a func() error, by what it was opened as.
var hungGPUs sync.Map

// openGPU opens a GPU on which the kernels run, whose calls are bounded. A driver that does not return from a call is left to it: what it may give later is nobody's. One that has hung
// is not opened again: the process would wait again.
func openGPU(name, which string, open func(which string) (gpuRuntime, error), log *slog.Logger, stop <-chan struct{}) (gpuRuntime, error) {
	as := name + ":" + which
	if why, before := hungGPUs.Load(as); before {
		if err := why.(func() error)(); err != nil {
			return nil, err
		}
	}
	rt, err := openBounded(name, func() (gpuRuntime, error) { return open(which) }, log, stop)
	switch {
	case err == nil:
		hungGPUs.Store(as, rt.Hung)
		return rt, nil
	case errors.Is(err, calls.ErrHangs):
		hungGPUs.Store(as, func() error { return err })
	}
	return nil, err
}

// openBounded is openGPU, each time anew.
func openBounded(name string, open func() (gpuRuntime, error), log *slog.Logger, stop <-chan struct{}) (*bounded.Runtime, error) {
	was := uint64(0)
	goesOn := func(n *calls.Notes) bool {
		_, now := n.Last()
		on := now != was
		was = now
		return on
	}
	rt, call, err := bounded.Call(openTimeout, stop, goesOn, func() (gpuRuntime, error) { return openNow(open, log) }, nil)
	switch {
	case err != nil:
		return nil, err
	case call == "":
		return bounded.New(rt, bounded.Options{Limit: openTimeout, Stop: stop, Log: log}), nil
	case call == bounded.Unnamed:
		call = "loading its library"
	}
	return nil, bounded.Hangs(name, call, openTimeout, stop)
}

// openNow is openBounded, for as long as the driver takes.
func openNow(open func() (gpuRuntime, error), log *slog.Logger) (gpuRuntime, error) {
	rt, err := open()
	if err != nil {
		return nil, err
	}
	image, err := kernels.Image(rt.Facts().Arch)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s runtime: %s: %w", rt.Name(), rt.Facts().Name, err), rt.Close())
	}
	if err := tryKernel(rt, image); err != nil {
		// The runtime is not closed: with a GPU that is lost or hangs, closing may not return.
		return nil, fmt.Errorf("%s runtime: %s runs no kernel: %w", rt.Name(), rt.Facts().Name, err)
	}
	for _, m := range rt.Missing() {
		log.Info("the GPU's library or driver lacks something", "what", m)
	}
	log.Info("the lanes run on a GPU", "gpu", rt.Facts().Name, "runtime", rt.Facts().Runtime)
	return rt, nil
}

// tryTimeout bounds a kernel that writes a few words.
const tryTimeout = 30 * time.Second

// tryKernel runs a kernel that writes a pattern, and compares what the CPU reads.
func tryKernel(rt gpu.Runtime, image []byte) error {
	m, err := rt.Load(image)
	if err != nil {
		return err
	}
	f, err := m.Function(kernels.WritePatternKernel)
	if err != nil {
		return err
	}
	mem, err := rt.Alloc(gpu.HostMapped, 4096)
	if err != nil {
		return err
	}
	s, err := rt.NewStream()
	if err != nil {
		return err
	}
	const words, seed = 64, 1
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	if err := s.Launch(f, one, one, uint64(mem.Addr()), words, seed); err != nil {
		return err
	}
	if err := s.Wait(tryTimeout); err != nil {
		return err
	}
	for i := range words {
		if got := binary.NativeEndian.Uint64(mem.Host()[8*i:]); got != kernels.Pattern(seed, uint64(i)) {
			return errors.New("the CPU does not see what it wrote into pinned memory")
		}
	}
	return errors.Join(s.Close(), mem.Close(), m.Close())
}
