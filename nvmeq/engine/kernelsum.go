package engine

import (
	"encoding/binary"
	"errors"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// kernelSum has a kernel read memory as kernels do, through the device's caches: a copy engine may go past them.
type kernelSum struct {
	fn     gpu.Function
	out    gpu.Memory // of kernels.CheckPatternKernel
	stream gpu.Stream
}

// open may wait for the device. The stream stays its owner's.
func (k *kernelSum) open(rt gpu.Runtime, m gpu.Module, s gpu.Stream) (err error) {
	k.stream = s
	if k.fn, err = m.Function(kernels.CheckPatternKernel); err != nil {
		return err
	}
	k.out, err = rt.Alloc(gpu.HostMapped, 4096)
	return err
}

func (k *kernelSum) close() error {
	if k.out == nil {
		return nil
	}
	return k.out.Close()
}

// of is the sum of the 64-bit words in n bytes at addr, as a kernel sees them.
func (k *kernelSum) of(addr gpu.Addr, n int64) (uint64, error) {
	out := k.out.Host()
	clear(out[:16])
	if err := k.stream.Launch(k.fn, one, one, uint64(addr), uint64(n/8), 0, uint64(k.out.Addr())); err != nil {
		return 0, err
	}
	if err := k.stream.Wait(copyTimeout); err != nil {
		return 0, errors.Join(errLeft, err)
	}
	return binary.LittleEndian.Uint64(out[8:]), nil
}

// sumOf is the same of bytes that the CPU has.
func sumOf(b []byte) (sum uint64) {
	for ; len(b) >= 8; b = b[8:] {
		sum += binary.LittleEndian.Uint64(b)
	}
	return sum
}
