package copyengine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// gatherer copies many small pieces by one launch of a kernel (kernels.GatherKernel), where a copy engine takes microseconds for each.
// But the contexts of several processes take turns on an NVIDIA GPU, and a kernel waits for its turn, some 2 ms, which copy engines do
// not. So it chooses, by how many pieces there are and by how late the kernel answered:
//
//	in time  the kernel, but for a piece or two
//	late     the copy engine, unless the pieces would keep it busy for longer than the kernel was late. A goroutine probes with launches
//	         that copy nothing, while there is something to choose, until the kernel is in time again
type gatherer struct {
	module gpu.Module
	kernel gpu.Function
	wave   uint32
	stream gpu.Stream    // for probes
	after  time.Duration // lateAfter; tests lengthen it

	traffic *traffic // Engine.traffic

	late  atomic.Int64 // by how much the kernel was late, in ns; 0: it is in time
	lates atomic.Uint64

	mu      sync.Mutex
	probing bool           // protected by mu: a goroutine probes
	closed  bool           // protected by mu: no further goroutine begins
	probes  sync.WaitGroup // the goroutine that probes
}

const (
	gatherBlock  = 256       // threads: kernels.MaxBlock
	gatherBlocks = 8         // enough to keep PCI Express busy
	gatherPart   = 8 << 10   // bytes; shorter pieces are not cut
	gatherTurns  = 4         // parts for each wave, if there are pieces enough to cut: shorter parts are slower, 64 KiB as 8 KiB by 4 % (H100)
	gatherLarge  = 256 << 10 // bytes; from here on a copy engine is as fast
	gatherFew    = 3         // pieces; fewer go by the copy engine

	gatherList = 4096 // parts that a stream's list holds
	gatherMost = 1024 // pieces that wait for a launch

	copyCost    = 3 * time.Microsecond   // of the copy engine, for each piece
	launchCost  = 30 * time.Microsecond  // of a launch that answers in time
	gatherRate  = 16                     // bytes a ns that a launch moves at least
	lateAfter   = 100 * time.Microsecond // beyond that it is late
	firstProbe  = 5 * time.Millisecond
	longestRest = 80 * time.Millisecond // between two probes
	inTimeAgain = 3                     // probes in a row: one alone may have met a slice of its own
)

// newGatherer gives an error where the runtime's device has no such kernel.
func newGatherer(rt gpu.Runtime, t *traffic, w *watch) (_ *gatherer, err error) {
	g := &gatherer{after: lateAfter, traffic: t, wave: uint32(rt.Facts().WaveSize)}
	image, err := kernels.Image(rt.Facts().Arch)
	if err != nil {
		return nil, err
	}
	if g.module, err = rt.Load(image); err != nil {
		return nil, err
	}
	if g.kernel, err = g.module.Function(kernels.GatherKernel); err == nil {
		g.stream, err = rt.NewStream()
	}
	if err != nil {
		return nil, errors.Join(err, g.module.Close())
	}
	g.stream = handed{g.stream, w.newCall()} // the probing goroutine's: nobody waits for that
	return g, nil
}

func (g *gatherer) close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.probes.Wait()
	return errors.Join(g.stream.Close(), g.module.Close())
}

// choose says whether n pieces go by the kernel.
func (g *gatherer) choose(n int) bool {
	if g == nil {
		return false
	}
	late := time.Duration(g.late.Load())
	if late == 0 {
		return n >= gatherFew
	}
	g.probe()
	if time.Duration(n)*copyCost > late {
		return true
	}
	g.lates.Add(uint64(n))
	return false
}

// launch begins the kernel over count parts of a list.
func (g *gatherer) launch(s gpu.Stream, list gpu.Addr, count int) error {
	waves := gatherBlock / g.wave
	blocks := min((uint32(count)+waves-1)/waves, gatherBlocks)
	return s.Launch(g.kernel, gpu.Dim3{X: max(blocks, 1), Y: 1, Z: 1}, gpu.Dim3{X: gatherBlock, Y: 1, Z: 1}, uint64(list), uint64(count))
}

// limit is after what time a launch is late that began when traffic.ended was as given. What was under way then or has begun since, its own bytes
// with others', shares the bus.
func (g *gatherer) limit(ended int64) time.Duration {
	return launchCost + g.after + time.Duration((g.traffic.begun.Load()-ended)/gatherRate)
}

// isLate follows a launch that has not ended after d.
func (g *gatherer) isLate(d time.Duration) {
	g.late.Store(int64(d))
	g.probe()
}

// probe begins to probe, unless that is under way.
func (g *gatherer) probe() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed && !g.probing {
		g.probing = true
		g.probes.Go(g.probeUntilInTime)
	}
}

// probeUntilInTime returns when the kernel answers in time again, or when nothing was chosen for a while: the next choice begins anew.
func (g *gatherer) probeUntilInTime() {
	defer func() {
		g.mu.Lock()
		g.probing = false
		g.mu.Unlock()
	}()
	pause, inTime := firstProbe, 0
	for {
		before := g.lates.Load()
		time.Sleep(pause)
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		ended := g.traffic.ended.Load()
		if closed || g.launch(g.stream, 0, 0) != nil {
			return
		}
		late := false
		err := await(g.stream, mark{}, func(d time.Duration) {
			if d > g.limit(ended) {
				g.late.Store(int64(d))
				late = true
			}
		})
		switch {
		case err != nil:
			return // what copies meets it, too
		case !late:
			if inTime++; inTime == inTimeAgain {
				g.late.Store(0)
				return
			}
		default:
			inTime, pause = 0, min(2*pause, longestRest)
			if g.lates.Load() == before {
				return
			}
		}
	}
}

// part is how many bytes of a piece go to one wave at most, of so many that are copied together: then all waves have something to do, and a list has room
// for gatherMost pieces.
func (g *gatherer) part(bytes uint64) uint64 {
	turns := min(uint64(gatherBlocks*gatherBlock/g.wave)*gatherTurns, gatherList/2)
	return max(gatherPart, bytes/turns&^4095)
}

// count is how many parts pieces are cut into.
func count(pieces []kernels.GatherPiece, part uint64) (n int) {
	for _, p := range pieces {
		n += int((p.Bytes + part - 1) / part)
	}
	return n
}

// list is pinned memory with the parts of the launches of a stream.
type list struct {
	mem   gpu.Memory
	parts []kernels.GatherPiece
	used  int // by launches that may not have ended
}

func newList(rt gpu.Runtime) (*list, error) {
	m, err := rt.Alloc(gpu.HostMapped, gatherList*kernels.GatherPieceSize)
	if err != nil {
		return nil, fmt.Errorf("list of pieces: %w", err)
	}
	return &list{mem: m, parts: unsafe.Slice((*kernels.GatherPiece)(unsafe.Pointer(&m.Host()[0])), gatherList)}, nil
}

// fits says whether there is room for pieces that need n parts.
func (l *list) fits(n int) bool { return l.used+n <= len(l.parts) }

// add cuts pieces up into parts of so many bytes, and gives the device's address of the first.
func (l *list) add(pieces []kernels.GatherPiece, part uint64) (at gpu.Addr, count int) {
	at, from := l.mem.Addr()+gpu.Addr(l.used*kernels.GatherPieceSize), l.used
	for _, p := range pieces {
		for p.Bytes > 0 {
			q := p
			q.Bytes = min(p.Bytes, part)
			l.parts[l.used] = q
			l.used++
			p.Dst, p.Src, p.Bytes = p.Dst+q.Bytes, p.Src+q.Bytes, p.Bytes-q.Bytes
		}
	}
	return at, l.used - from
}
