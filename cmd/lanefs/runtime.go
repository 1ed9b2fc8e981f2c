package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/kernels"
)

// gpuRuntime is a gpu.Runtime that may lack something.
type gpuRuntime interface {
	gpu.Runtime
	Missing() []string // of what it would use, a sentence each
}

// gpus are the runtimes of GPUs, in the order in which auto tries them.
var gpus = []struct {
	name string
	open func() (gpuRuntime, error)
}{
	{"hip", func() (gpuRuntime, error) { return opened(hip.Open(hip.Options{})) }},
	{"cuda", func() (gpuRuntime, error) { return opened(cuda.Open(cuda.Options{})) }},
}

// opened keeps a nil *T from becoming a runtime.
func opened[T gpuRuntime](rt T, err error) (gpuRuntime, error) {
	if err != nil {
		return nil, err
	}
	return rt, nil
}

// openRuntime opens what --gpu names. auto takes a GPU if there is one that works, else the CPU, and says why.
func openRuntime(name string, log *slog.Logger) (gpu.Runtime, error) {
	if name == "host" {
		return host.Open(host.Options{})
	}
	auto := name == "auto" || name == ""
	var why []string
	for _, g := range gpus {
		if !auto && g.name != name {
			continue
		}
		rt, err := openGPU(g.open, log)
		if err == nil {
			return rt, nil
		}
		if !auto {
			return nil, err
		}
		why = append(why, oneLine(err))
	}
	if !auto {
		return nil, fmt.Errorf("--gpu %q: want auto, host, hip or cuda", name)
	}
	onCPU(log, strings.Join(why, "; "))
	return host.Open(host.Options{})
}

// onCPU is what auto says when it takes no GPU.
func onCPU(log *slog.Logger, why string) { log.Info("the lanes run on the CPU", "why", why) }

// openGPU opens a GPU for which there are kernels.
func openGPU(open func() (gpuRuntime, error), log *slog.Logger) (gpuRuntime, error) {
	rt, err := open()
	if err != nil {
		return nil, err
	}
	if _, err := kernels.Image(rt.Facts().Arch); err != nil {
		return nil, errors.Join(fmt.Errorf("%s runtime: %s: %w", rt.Name(), rt.Facts().Name, err), rt.Close())
	}
	for _, m := range rt.Missing() {
		log.Info("the GPU's library or driver lacks something", "what", m)
	}
	log.Info("the lanes run on a GPU", "gpu", rt.Facts().Name, "runtime", rt.Facts().Runtime)
	return rt, nil
}
