package host

import (
	"testing"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/kernels/kerneltest"
	"github.com/stretchr/testify/require"
)

func open(t testing.TB) gpu.Runtime {
	r, err := Open(Options{})
	require.NoError(t, err)
	return r
}

func TestRuntime(t *testing.T) { gputest.Runtime(t, open) }

func TestLanes(t *testing.T) { gputest.Lanes(t, open) }

func TestLoad(t *testing.T) { gputest.Load(t, open) }

// slots is a runtime that runs the kernels of lanes with several slots a thread, whichever image it is given.
type slots struct{ gpu.Runtime }

func (r slots) Load([]byte) (gpu.Module, error) {
	image, err := kerneltest.SlotsImage(r.Facts().Arch)
	if err != nil {
		return nil, err
	}
	return r.Runtime.Load(image)
}

// Lanes of one thread as GPUs have them.
func TestSlots(t *testing.T) {
	openSlots := func(t testing.TB) gpu.Runtime { return slots{open(t)} }
	gputest.Lanes(t, openSlots)
	gputest.Load(t, openSlots)
}

func FuzzPRP(f *testing.F) {
	f.Add(uint64(0x1000), uint32(1<<21), uint8(0), uint16(0), uint32(1<<15))
	f.Add(uint64(0xffc), uint32(4<<20), uint8(1), uint16(511), uint32(8))
	p := gputest.NewPRPs(f, open)
	f.Fuzz(func(t *testing.T, iova uint64, length uint32, shift uint8, listOffset uint16, listBytes uint32) {
		page := uint64(4096) << (shift % 5)
		offset := uint64(listOffset) % (page / 8) * 8
		p.Check(t, iova, uint64(length), page, offset, uint64(listBytes)/8*8%(1<<19-offset))
	})
}
