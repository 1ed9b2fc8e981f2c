package copyengine

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/kernels"
)

// rig is an engine of a device that the CPU cannot see into, with pinned memory and memory of the device.
type rig struct {
	t    *testing.T
	rt   *detached.Runtime
	e    *Engine
	host []byte
	dev  gpu.Memory
}

const rigSize = 8 << 20

func newRig(t *testing.T) *rig {
	t.Helper()
	rt, err := detached.New(false)
	require.NoError(t, err)
	r := &rig{t: t, rt: rt}
	r.e, err = New(rt)
	require.NoError(t, err)
	require.NoError(t, r.e.noGather)
	r.e.gather.after = time.Minute // this device's threads share the machine's CPUs
	r.host, err = r.e.Stage(rigSize)
	require.NoError(t, err)
	r.dev, err = rt.Alloc(gpu.DevicePlain, rigSize)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range r.host {
		r.host[i] = byte(rng.Uint32())
	}
	return r
}

func (r *rig) close() {
	r.t.Helper()
	require.NoError(r.t, r.e.Close())
	require.NoError(r.t, r.dev.Close())
	require.NoError(r.t, r.rt.Close(), "the runtime finds leaks")
}

// seen is what is in the device's memory, as its copy engine reads it.
func (r *rig) seen() []byte {
	b := make([]byte, rigSize)
	require.NoError(r.t, r.e.Read(b, r.dev, 0))
	return b
}

// move copies count pieces of n bytes to the device, each to a place of its own, with one Wait, and looks whether they are there.
func (r *rig) move(count, n int) error {
	r.t.Helper()
	p, err := r.e.Pipe()
	require.NoError(r.t, err)
	want := r.seen()
	step := rigSize / count
	for i := range count {
		from, to := i*step, (i+1)%count*step+i%3*4
		copy(want[to:to+n], r.host[from:])
		require.NoError(r.t, p.Write(r.dev, int64(to), r.host[from:from+n]))
	}
	if err := p.Close(); err != nil {
		return err
	}
	require.True(r.t, bytes.Equal(want, r.seen()), "%d pieces of %d bytes", count, n)
	return nil
}

// Small pieces go together, however many they are, large ones and one alone by the copy engine; and all come back.
func TestGather(t *testing.T) {
	r := newRig(t)
	defer r.close()
	require.NoError(t, r.move(1, 4096))
	require.Zero(t, r.e.Counters().Launches)
	require.NoError(t, r.move(3, 512))
	require.NoError(t, r.move(64, 4096))
	require.EqualValues(t, 2, r.e.Counters().Launches)
	require.EqualValues(t, Count{67, 3*512 + 64*4096}, r.e.Counters().Kernel)
	require.NoError(t, r.move(3*gatherMost+1, 512)) // more than one launch
	require.NoError(t, r.move(100, 65535))
	require.NoError(t, r.move(17, 3*gatherPart-5))
	before := r.e.Counters().Large.Copies
	require.NoError(t, r.move(2, gatherLarge))
	require.Equal(t, before+2, r.e.Counters().Large.Copies)

	p, err := r.e.Pipe()
	require.NoError(t, err)
	want := r.seen()
	clear(r.host)
	for i := range 500 {
		require.NoError(t, p.Read(r.host[i*9001:i*9001+777], r.dev, int64(i*9001)))
	}
	require.NoError(t, p.Wait())
	for i := range 500 {
		require.True(t, bytes.Equal(want[i*9001:i*9001+777], r.host[i*9001:i*9001+777]))
	}
	require.NoError(t, p.Close())
	require.Positive(t, r.e.traffic.begun.Load())
	require.Equal(t, r.e.traffic.begun.Load(), r.e.traffic.ended.Load())
}

// However long as many pieces as wait for a launch are, they are cut into parts that a list has room for; few are cut so that all waves have some.
func TestParts(t *testing.T) {
	for _, wave := range []uint32{1, 32, 64} {
		g := &gatherer{wave: wave}
		for _, most := range []uint64{1, 4096, 8<<10 + 1, 12<<10 - 1, 64 << 10, gatherLarge - 1} {
			pieces, bytes := make([]kernels.GatherPiece, gatherMost), uint64(0)
			for i := range pieces {
				pieces[i].Bytes = most - uint64(i)%min(most, 2)
				bytes += pieces[i].Bytes
			}
			n := count(pieces, g.part(bytes))
			require.GreaterOrEqual(t, n, gatherMost)
			require.LessOrEqual(t, n, gatherList, "wave %d, pieces of %d", wave, most)
		}
		require.EqualValues(t, 3*32, count([]kernels.GatherPiece{{Bytes: gatherLarge - 1}, {Bytes: gatherLarge - 1}, {Bytes: gatherLarge - 1}}, g.part(3*gatherLarge-3)))
	}
}

// A launch that is refused has copied nothing: the copy engine does it.
func TestGatherRefused(t *testing.T) {
	r := newRig(t)
	defer r.close()
	r.rt.Refuse()
	require.NoError(t, r.move(64, 4096))
	require.Zero(t, r.e.Counters().Kernel.Copies)
}

// While a kernel answers late few pieces go by the copy engine, which does not wait for it; afterwards by the kernel again.
func TestGatherLate(t *testing.T) {
	r := newRig(t)
	defer r.close()
	r.e.gather.after = 50 * time.Millisecond
	require.NoError(t, r.move(64, 4096))
	launches := r.e.Counters().Launches
	r.rt.Hang()
	p, err := r.e.Pipe()
	require.NoError(t, err)
	for i := range int64(64) {
		require.NoError(t, p.Write(r.dev, i*4096, r.host[i*4096:][:4096]))
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Close() }()
	require.Eventually(t, func() bool { return r.e.Counters().LateBy > r.e.gather.after }, time.Minute, time.Millisecond)
	require.NoError(t, r.move(64, 512))
	c := r.e.Counters()
	require.Equal(t, launches+1, c.Launches)
	require.EqualValues(t, 64, c.Late)
	require.Empty(t, ended)
	r.rt.Resume()
	require.NoError(t, <-ended, "late, but it comes")
	require.Eventually(t, func() bool {
		require.NoError(t, r.move(64, 4096))
		return r.e.Counters().Launches > launches+1
	}, time.Minute, time.Millisecond)
}

// A device that is lost in the middle is an error of all that waits for it, and of what comes later.
func TestGatherLost(t *testing.T) {
	r := newRig(t)
	p, err := r.e.Pipe()
	require.NoError(t, err)
	for i := range int64(64) {
		require.NoError(t, p.Write(r.dev, i*4096, r.host[i*4096:][:4096]))
	}
	r.rt.Lose()
	require.ErrorContains(t, p.Wait(), "the device is lost")
	require.ErrorContains(t, p.Close(), "the device is lost")
	require.ErrorContains(t, r.e.Write(r.dev, 0, r.host[:4096]), "the device is lost")
	require.NoError(t, r.e.Stuck(), "it does nothing any more")
}

// After a copy that does not end the engine copies nothing, gives nothing back, and lets nobody wait.
func TestGatherStuck(t *testing.T) {
	r := newRig(t)
	defer func(d time.Duration) { copyTimeout = d }(copyTimeout)
	copyTimeout = 50 * time.Millisecond // no copy but the one that hangs is under it: on a busy machine others take as long
	r.rt.Hang()
	t.Cleanup(r.rt.Resume) // it is not closed: its kernels may run yet
	p, err := r.e.Pipe()
	require.NoError(t, err)
	for i := range int64(64) {
		require.NoError(t, p.Write(r.dev, 8192*i, r.host[8192*i:][:4096]))
	}
	require.ErrorIs(t, p.Close(), ErrStuck)
	require.ErrorIs(t, r.e.Stuck(), ErrStuck)
	require.ErrorIs(t, r.e.Write(r.dev, 0, r.host[:4096]), ErrStuck)
	for range 2 * streams {
		_, err := r.e.Pipe()
		require.ErrorIs(t, err, ErrStuck)
	}
	require.ErrorIs(t, r.e.Close(), ErrStuck)
}

// A launch is not late while the bus moves other bytes, and all that was begun is known to have ended.
func TestTraffic(t *testing.T) {
	g := &gatherer{after: lateAfter, traffic: &traffic{}}
	alone := g.limit(0)
	g.traffic.begun.Add(16 << 20)
	require.Equal(t, alone+(16<<20)/gatherRate, g.limit(0))
	require.Equal(t, alone, g.limit(16<<20), "what had ended before does not count")
}
