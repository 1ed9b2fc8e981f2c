package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/kernels/traced"
)

// blocks writes and checks patterns by kernels of the runtime that runs the lanes. All methods may be called from any goroutine.
type blocks struct {
	seed    uint64
	wave    int
	module  gpu.Module
	writer  gpu.Function
	checker gpu.Function
	streams chan gpu.Stream // those that nobody uses
}

const (
	// mostStreams is how many launches are under way at once.
	mostStreams = 8
	// mostGroups is how many groups of threads work on one batch.
	mostGroups = 64
	// launchTimeout bounds one launch.
	launchTimeout = 30 * time.Second
)

func openBlocks(rt gpu.Runtime, seed uint64) (_ *blocks, err error) {
	image, err := traced.Image(rt.Facts().Arch)
	if err != nil {
		return nil, err
	}
	b := &blocks{seed: seed, wave: max(rt.Facts().WaveSize, 1), streams: make(chan gpu.Stream, mostStreams)}
	if rt.Facts().CallerDriven {
		b.wave = 1
	}
	if b.module, err = rt.Load(image); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.writer, err = b.module.Function(traced.WriteBlocksKernel); err != nil {
		return nil, err
	}
	if b.checker, err = b.module.Function(traced.CheckBlocksKernel); err != nil {
		return nil, err
	}
	for range mostStreams {
		s, err := rt.NewStream()
		if err != nil {
			return nil, err
		}
		b.streams <- bounded.Stream(rt, s)
	}
	return b, nil
}

func (b *blocks) close() error {
	var errs []error
	for len(b.streams) > 0 {
		errs = append(errs, (<-b.streams).Close())
	}
	return errors.Join(append(errs, b.module.Close())...)
}

// write writes the patterns of n blocks, check compares them.
func (b *blocks) write(table gpu.Addr, n int) error {
	return b.launch(b.writer, n, uint64(table), uint64(n), b.seed)
}

func (b *blocks) check(table gpu.Addr, n int, out gpu.Addr) error {
	return b.launch(b.checker, n, uint64(table), uint64(n), b.seed, uint64(out))
}

// launch returns when the kernel has ended: what it stored is then there for controllers and the CPU.
func (b *blocks) launch(f gpu.Function, n int, args ...uint64) error {
	grid, block := one, one
	if b.wave > 1 {
		block.X = uint32(kernels.MaxBlock)
		grid.X = uint32(min((n*b.wave+kernels.MaxBlock-1)/kernels.MaxBlock, mostGroups))
	}
	s := <-b.streams
	defer func() { b.streams <- s }()
	if err := s.Launch(f, grid, block, args...); err != nil {
		return fmt.Errorf("the kernel of the patterns: %w", err)
	}
	if err := s.Wait(launchTimeout); err != nil {
		return fmt.Errorf("the kernel of the patterns: %w", err)
	}
	return nil
}
