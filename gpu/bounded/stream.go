package bounded

import (
	"slices"
	"time"

	"github.com/lanefs/lanefs/gpu"
)

// Stream is s, a stream of rt, with its calls bounded if rt is a Runtime. Each call wakes two goroutines, so it is for who makes few.
func Stream(rt gpu.Runtime, s gpu.Stream) gpu.Stream {
	if r, ok := rt.(*Runtime); ok && s != nil {
		return stream{s, r}
	}
	return s
}

// Fits is gpu.Fits of a kernel of rt, which is bounded if rt is a Runtime.
func Fits(rt gpu.Runtime, f gpu.Function, block gpu.Dim3) (int64, error) {
	if r, ok := rt.(*Runtime); ok {
		return within(r, "a query of what fits", 0, func() (int64, error) { return gpu.Fits(f, block) })
	}
	return gpu.Fits(f, block)
}

// Import is rt.Import of what no other process has exported, which nothing but the device and its driver can hold up: a GPU of a Runtime counts as lost then.
func Import(rt gpu.Runtime, e gpu.Export) (gpu.Memory, error) {
	r, ok := rt.(*Runtime)
	if !ok {
		return rt.Import(e)
	}
	return r.imported(e, func(f func() (gpu.Memory, error)) (gpu.Memory, error) { return within(r, "an import", 0, f) })
}

type stream struct {
	s gpu.Stream
	r *Runtime
}

func (s stream) Launch(f gpu.Function, grid, block gpu.Dim3, args ...uint64) error {
	args = slices.Clone(args) // a call that is given up reads them when the caller's have changed
	return s.r.act("a launch", 0, func() error { return s.s.Launch(f, grid, block, args...) })
}

func (s stream) Copy(dst, src gpu.Addr, n int64) error {
	return s.r.act("a copy", 0, func() error { return s.s.Copy(dst, src, n) })
}

func (s stream) Fill(dst gpu.Addr, v byte, n int64) error {
	return s.r.act("a fill", 0, func() error { return s.s.Fill(dst, v, n) })
}

func (s stream) Done() (bool, error) { return within(s.r, "a query of a stream", 0, s.s.Done) }

func (s stream) Wait(timeout time.Duration) error {
	return s.r.act("a query of a stream", timeout, func() error { return s.s.Wait(timeout) })
}

func (s stream) Close() error { return s.r.act("the close of a stream", 0, s.s.Close) }
