package lanefs_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/kernels"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestStage: pieces of every size and alignment, more than the stage holds, go into ordinary memory and into a runtime's, and back.
func TestStage(t *testing.T) {
	m := sharetest.New(t, 128*mib, 8*mib)
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 5*mib+321)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	f := m.Write("file", data)
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	device, err := rt.Alloc(gpu.DeviceVMM, 12*mib)
	require.NoError(t, err)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	_, err = s.NewStage(lanefs.StageOptions{Size: 100})
	require.ErrorIs(t, err, unix.EINVAL)
	g, err := s.NewStage(lanefs.StageOptions{Size: mib, Runtime: rt})
	require.NoError(t, err)

	var pieces []lanefs.Piece
	at := int64(1)
	for i := range 3000 {
		n := int64(i*13%1500) * int64(1+i%200/199*900) // some of more than a request
		n = min(n, int64(len(data)))
		p := lanefs.Piece{Off: rng.Int64N(int64(len(data)) - n + 1), MemOff: at, Len: n}
		if at+n > 11*mib {
			break
		}
		pieces, at = append(pieces, p), at+n+int64(i%3)
	}
	pieces = append(pieces, lanefs.Piece{Off: int64(len(data)) - 10, MemOff: at, Len: 30}, lanefs.Piece{Off: 1 << 40, MemOff: at + 30, Len: 5})
	plain := bytes.Repeat([]byte("x"), 12*mib)
	for name, read := range map[string]func() ([]int64, error){
		"plain":  func() ([]int64, error) { return g.Read(file, plain, pieces) },
		"device": func() ([]int64, error) { return g.ReadInto(file, device.Addr(), device.Size(), pieces) },
	} {
		t.Run(name, func(t *testing.T) {
			got := plain
			if name == "device" {
				got = device.Host()
			}
			for i := range got {
				got[i] = 'x'
			}
			want := bytes.Clone(got)
			results, err := read()
			require.NoError(t, err)
			for i, p := range pieces {
				n := max(min(p.Len, int64(len(data))-p.Off), 0)
				require.Equal(t, n, results[i])
				clear(want[p.MemOff : p.MemOff+p.Len])
				if n > 0 {
					copy(want[p.MemOff:p.MemOff+n], data[p.Off:])
				}
			}
			require.True(t, bytes.Equal(want, got))
		})
	}

	for i := range plain {
		plain[i] = byte(i * 7)
	}
	copy(device.Host(), plain)
	writes := []lanefs.Piece{{Off: 0, MemOff: 3, Len: 2*mib + 1}, {Off: 4 * mib, MemOff: 5 * mib, Len: 3 * mib}, {Off: 3 * mib, MemOff: 9, Len: 77}}
	for _, write := range []func() ([]int64, error){
		func() ([]int64, error) { return g.Write(file, plain, writes) },
		func() ([]int64, error) { return g.WriteFrom(file, device.Addr(), device.Size(), writes) },
	} {
		require.NoError(t, os.WriteFile(f.Name(), data, 0o600))
		results, err := write()
		require.NoError(t, err)
		want := append(bytes.Clone(data), make([]byte, 7*mib-len(data))...)
		for i, p := range writes {
			require.Equal(t, p.Len, results[i])
			copy(want[p.Off:], plain[p.MemOff:p.MemOff+p.Len])
		}
		got, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}

	_, err = g.Read(file, plain, []lanefs.Piece{{Len: 1}, {MemOff: 12 * mib, Len: 1}})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "piece 1, ")
	readOnly := m.Open("file", os.O_RDONLY)
	r, err := s.Open(readOnly)
	require.NoError(t, err)
	results, err := g.Write(r, plain, []lanefs.Piece{{Len: 10}})
	require.ErrorIs(t, err, unix.EACCES)
	require.Equal(t, []int64{0}, results)
	require.NoError(t, g.Close())
	_, err = g.Read(file, plain, pieces)
	require.ErrorIs(t, err, unix.EBADF)
	require.NoError(t, device.Close())
}

// TestStageLate: while kernels wait for another process's some pieces go by copies and many do not; later a kernel is tried again.
func TestStageLate(t *testing.T) {
	const some, lots = 200, 300
	m := sharetest.New(t, 64*mib, 8*mib)
	data := make([]byte, mib)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	f := m.Write("file", data)
	rt, err := detached.New(true)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	image, err := kernels.Image(rt.Facts().Arch)
	require.NoError(t, err)
	module, err := rt.Load(image)
	require.NoError(t, err)
	gather, err := module.Function(kernels.GatherKernel)
	require.NoError(t, err)
	device, err := rt.Alloc(gpu.DevicePlain, mib)
	require.NoError(t, err)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	g, err := s.NewStage(lanefs.StageOptions{Size: 4 * mib, Runtime: rt, Gather: gather})
	require.NoError(t, err)

	// byKernel reads n pieces, and says whether a kernel did it.
	byKernel := func(n int) bool {
		var pieces []lanefs.Piece
		clear(device.Host())
		for i := range int64(n) {
			pieces = append(pieces, lanefs.Piece{Off: i * 900, MemOff: i * 1000, Len: 500 - i%2})
		}
		before := rt.Launches()
		_, err := g.ReadInto(file, device.Addr(), device.Size(), pieces)
		require.NoError(t, err)
		for _, p := range pieces {
			require.True(t, bytes.Equal(data[p.Off:p.Off+p.Len], device.Host()[p.MemOff:p.MemOff+p.Len]))
			require.Zero(t, device.Host()[p.MemOff+p.Len])
		}
		launches := rt.Launches() - before
		require.LessOrEqual(t, launches, int64(1))
		return launches == 1
	}
	require.True(t, byKernel(some))
	for late := false; !late; { // again, if the machine was too slow
		rt.Hang()
		before := rt.Launches()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for rt.Launches() == before {
				select {
				case <-stop: // a kernel was late by itself
					rt.Resume()
					return
				case <-time.After(time.Millisecond):
				}
			}
			time.Sleep(5 * time.Millisecond)
			rt.Resume()
		}()
		launched := byKernel(some)
		begun := time.Now()
		close(stop)
		<-done
		for range 3 {
			by := byKernel(some)
			if launched && time.Since(begun) < time.Second/2 {
				require.False(t, by, "a kernel was late")
				late = true
			}
		}
		require.True(t, byKernel(lots), "by copies more would take longer than a kernel is late")
		require.False(t, byKernel(1))
	}
	require.Eventually(t, func() bool {
		first := byKernel(some)
		return first && byKernel(some)
	}, time.Minute, time.Millisecond, "it is tried again, and was in time")
	require.NoError(t, g.Close())
	require.NoError(t, device.Close())
	require.NoError(t, module.Close())
}

// TestStageStuck: after a batch whose copies were not seen to end, its stage is not used again: they would go over what another batch has there.
func TestStageStuck(t *testing.T) {
	m := sharetest.New(t, 64*mib, 8*mib)
	data := bytes.Repeat([]byte("of the file "), mib/12)
	f := m.Write("file", data)
	rt, err := detached.New(true)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	image, err := kernels.Image(rt.Facts().Arch)
	require.NoError(t, err)
	module, err := rt.Load(image)
	require.NoError(t, err)
	gather, err := module.Function(kernels.GatherKernel)
	require.NoError(t, err)
	device, err := rt.Alloc(gpu.DevicePlain, mib)
	require.NoError(t, err)
	s := connect(t, f)
	file, err := s.Open(f)
	require.NoError(t, err)
	g, err := s.NewStage(lanefs.StageOptions{Size: mib, Runtime: rt, Gather: gather, Timeout: 20 * time.Millisecond})
	require.NoError(t, err)
	var pieces []lanefs.Piece
	for i := range int64(100) {
		pieces = append(pieces, lanefs.Piece{Off: i * 512, MemOff: i * 512, Len: 512})
	}
	rt.Hang()
	_, err = g.WriteFrom(file, device.Addr(), device.Size(), pieces)
	require.Error(t, err)
	own := bytes.Repeat([]byte("mine"), 64<<10)
	_, err = g.Write(file, own, pieces)
	require.ErrorContains(t, err, "may still be under way")
	_, err = g.Read(file, own, pieces)
	require.ErrorContains(t, err, "may still be under way")
	rt.Resume()
	require.NoError(t, g.Close())
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got), "nothing was written")
	require.NoError(t, device.Close())
	require.NoError(t, module.Close())
}
