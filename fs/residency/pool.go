package residency

import (
	"container/list"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"

	"github.com/lanefs/lanefs/gpu"
)

// errFull says that what is held leaves no room.
var errFull = fmt.Errorf("the pool of device memory is full: %w", syscall.ENOMEM)

// maxLoads is how often Map reads a range that changes while it is read.
const maxLoads = 4

// plainGranule is the granule of memory that is not VMM. The libraries cut smaller allocations out of blocks of this size, and
// whoever gets a handle of one gets its block.
const plainGranule = 2 << 20

// Config of a Pool.
type Config struct {
	Runtime gpu.Runtime
	Mapper  Mapper
	Mover   Mover // nil where the CPU reaches all memory
	Size    int64 // bytes; rounded down to granules
}

// Pool is the device memory that LaneFS gives to programs.
type Pool struct {
	c       Config
	kind    gpu.MemKind // of the pool's memory
	granule int64
	exports []gpu.ExportKind
	// sealed says that exports for readers cannot be written through, so that all users may share them.
	sealed bool

	mu     sync.Mutex
	used   int64                          // bytes of all memory. Protected by mu, as is all below
	gen    uint64                         // the last generation
	files  map[uint32]map[*fileRange]bool // by inode number: what changes are told by
	idle   list.List                      // *fileRange, nobody's: the least recently used first
	pinned map[Key]bool                   //
	count  struct{ loads, loaded, shared, evicted int64 }
	closed bool
}

// Key names a file's bytes for those who may share them.
type Key struct {
	Ino, Generation uint32
	// Owner is the user among whose programs memory is shared that readers could write to. Pool.Key sets it.
	Owner uint32
}

// fileRange is resident bytes of a file. What is not said to be fixed is protected by Pool.mu.
type fileRange struct {
	key    Key // fixed, as are name, off and n
	name   string
	off    int64 // in the file
	n      int64
	end    int64 // changes before it touch the range; further than off+n for one that goes to the end of the file
	size   int64 // of the memory
	mem    *Memory
	gen    uint64 // that it was read at
	now    uint64 // that it would be read at now
	holds  map[*Hold]bool
	idle   *list.Element
	listed bool          // in files
	ready  chan struct{} // closed when mem or err is there
	err    error         // of the load; fixed once ready
}

// Hold is one client's use of memory. Its owner calls Release once.
type Hold struct {
	p      *Pool
	r      *fileRange
	notify func(generation uint64)
	waker  Waker
}

// New makes an empty pool.
func New(c Config) (*Pool, error) {
	f := c.Runtime.Facts()
	p := &Pool{c: c, kind: gpu.DeviceVMM, granule: f.Granularity, files: map[uint32]map[*fileRange]bool{}, pinned: map[Key]bool{}}
	if p.granule == 0 { // there is no VMM
		p.kind, p.granule = gpu.DevicePlain, plainGranule
	}
	p.c.Size = c.Size / p.granule * p.granule
	if p.c.Size <= 0 {
		return nil, fmt.Errorf("a pool of %d bytes of device memory: it takes at least a granule of %d", c.Size, p.granule)
	}
	// What another process can map comes first.
	for _, k := range []gpu.ExportKind{gpu.ExportMemFD, gpu.ExportPOSIX, gpu.ExportDMABUF, gpu.ExportIPC} {
		if slices.Contains(f.Exports, k) {
			p.exports = append(p.exports, k)
		}
	}
	if len(p.exports) == 0 {
		return nil, fmt.Errorf("the runtime %s exports no memory that a descriptor stands for", c.Runtime.Name())
	}
	p.sealed = p.exports[0] == gpu.ExportMemFD
	return p, nil
}

// Granule is the unit of the pool's memory, Size its size, both in bytes.
func (p *Pool) Granule() int64       { return p.granule }
func (p *Pool) Size() int64          { return p.c.Size }
func (p *Pool) Runtime() gpu.Runtime { return p.c.Runtime }

// Round is the memory that n bytes take.
func (p *Pool) Round(n int64) int64 { return (n + p.granule - 1) / p.granule * p.granule }

// Kind is what the pool's memory is exported as, if nothing keeps it from that.
func (p *Pool) Kind() gpu.ExportKind { return p.exports[0] }

// Key is the name under which a program of user uid shares a file's bytes.
func (p *Pool) Key(ino, generation, uid uint32) Key {
	if p.sealed {
		uid = 0
	}
	return Key{ino, generation, uid}
}

// Waker is somebody who waits for changes. It may be woken after its hold was released, so it must bear that.
type Waker interface{ Signal() }

// Want is what Map is asked for.
type Want struct {
	Key    Key
	Name   string // for people
	Off, N int64
	// ToEnd says that the range goes to the end of the file, so that bytes behind it would be new ones of it.
	ToEnd bool
	// Admit, if there is one, is asked before memory of so many bytes is taken for a range that is not resident. It is called under
	// the pool's lock.
	Admit func(bytes int64) error
	// Load reads the range to the start of m.
	Load func(m *Memory) error
	// Notify is told the new generation when the range is no longer current. It is called under the pool's lock: it may store that
	// somewhere, and nothing else.
	Notify func(generation uint64)
	// Waker is woken after Notify, without any lock: once for all the ranges that a change touches. It must not block.
	Waker Waker
}

// Map gives a hold on a range, which is read if it is not resident.
func (p *Pool) Map(w Want) (*Hold, error) {
	if w.Off < 0 || w.N <= 0 || w.N > math.MaxInt64/2 || w.Off > math.MaxInt64/2 {
		return nil, fmt.Errorf("%d bytes at %d: %w", w.N, w.Off, syscall.EINVAL)
	}
	for try := 1; ; try++ {
		h, load, err := p.enter(w)
		if err != nil {
			return nil, err
		}
		if load {
			p.load(h.r, w)
		} else {
			<-h.r.ready
		}
		if h.r.err != nil {
			err := h.r.err
			h.Release()
			if !load && try < maxLoads {
				continue // that was another's failure
			}
			return nil, err
		}
		if h.current() || try >= maxLoads {
			return h, nil
		}
		h.Release()
	}
}

// enter finds a range for w, or makes one that the caller loads.
func (p *Pool) enter(w Want) (*Hold, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, syscall.ESHUTDOWN
	}
	for r := range p.files[w.Key.Ino] {
		if r.key == w.Key && r.gen == r.now && r.off <= w.Off && w.Off+w.N <= r.off+r.n && (!w.ToEnd || r.end == math.MaxInt64) {
			p.count.shared++
			return p.holdLocked(r, w), false, nil
		}
	}
	if w.Admit != nil {
		if err := w.Admit(p.Round(w.N)); err != nil {
			return nil, false, err
		}
	}
	r := &fileRange{key: w.Key, name: w.Name, off: w.Off, n: w.N, end: w.Off + w.N, holds: map[*Hold]bool{}, ready: make(chan struct{}), listed: true}
	if w.ToEnd {
		r.end = math.MaxInt64
	}
	p.gen++
	r.gen, r.now = p.gen, p.gen
	of := p.files[w.Key.Ino]
	if of == nil {
		of = map[*fileRange]bool{}
		p.files[w.Key.Ino] = of
	}
	of[r] = true
	return p.holdLocked(r, w), true, nil
}

func (p *Pool) holdLocked(r *fileRange, w Want) *Hold {
	h := &Hold{p: p, r: r, notify: w.Notify, waker: w.Waker}
	if r.idle != nil {
		p.idle.Remove(r.idle)
		r.idle = nil
	}
	r.holds[h] = true
	return h
}

// load fills r. Only its maker calls it.
func (p *Pool) load(r *fileRange, w Want) {
	m, err := p.take(r.n)
	if err == nil {
		if err = w.Load(m); err == nil {
			err = m.Zero(int(r.n), int(m.Size()-r.n)) // what another file left there is nobody's business
		}
		m.zero.Store(false)
	}
	p.mu.Lock()
	r.mem, r.err = m, err
	if m != nil {
		r.size = m.Size()
	}
	if err != nil {
		p.unlistLocked(r)
	} else {
		p.count.loads++
		p.count.loaded += r.n
	}
	p.mu.Unlock()
	close(r.ready)
}

// take allocates memory for n bytes, evicting what nobody holds.
func (p *Pool) take(n int64) (*Memory, error) {
	if n > p.c.Size { // also what cannot be rounded up
		return nil, fmt.Errorf("%d bytes: %w: it has %d in all (-o vram=SIZE)", n, errFull, p.c.Size)
	}
	size := p.Round(n)
	p.mu.Lock()
	var victims []*fileRange
	left := p.used
	for e := p.idle.Front(); e != nil && left+size > p.c.Size; e = e.Next() {
		if r := e.Value.(*fileRange); !p.pinned[r.key] {
			victims = append(victims, r)
			left -= r.size
		}
	}
	if left+size > p.c.Size {
		p.mu.Unlock()
		return nil, fmt.Errorf("%d bytes: %w: %d of %d are held or pinned", n, errFull, left, p.c.Size)
	}
	for _, r := range victims {
		p.dropLocked(r)
		p.count.evicted++
	}
	p.used += size
	p.mu.Unlock()
	var errs []error
	for _, r := range victims {
		errs = append(errs, r.mem.close())
	}
	m, err := p.alloc(size)
	if err = errors.Join(append(errs, err)...); err != nil {
		p.give(size)
		if m != nil {
			err = errors.Join(err, m.close())
		}
		return nil, err
	}
	return m, nil
}

func (p *Pool) alloc(size int64) (*Memory, error) {
	g, err := p.c.Runtime.Alloc(p.kind, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", syscall.ENOMEM, err)
	}
	m, err := newMemory(g, p.c.Mapper, p.c.Mover)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	m.zero.Store(p.sealed) // a memfd's new pages are
	return m, nil
}

func (p *Pool) give(size int64) {
	p.mu.Lock()
	p.used -= size
	p.mu.Unlock()
}

// unlistLocked takes r out of the books: no new hold finds it, no change is told to it.
func (p *Pool) unlistLocked(r *fileRange) {
	if !r.listed {
		return
	}
	r.listed = false
	delete(p.files[r.key.Ino], r)
	if len(p.files[r.key.Ino]) == 0 {
		delete(p.files, r.key.Ino)
	}
}

// Alloc gives a hold on memory of its own, which nobody shares: load, if not nil, fills it.
func (p *Pool) Alloc(n int64, load func(*Memory) error) (*Hold, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%d bytes of device memory: %w", n, syscall.EINVAL)
	}
	m, err := p.take(n)
	if err != nil {
		return nil, err
	}
	r := &fileRange{n: n, size: m.Size(), mem: m, holds: map[*Hold]bool{}, ready: make(chan struct{})}
	close(r.ready)
	h := &Hold{p: p, r: r}
	r.holds[h] = true
	from := int64(0)
	if load != nil {
		err, from = load(m), n
	}
	if err == nil {
		err = m.Zero(int(from), int(m.Size()-from))
	}
	m.zero.Store(false)
	if err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// Import makes another's memory a Memory. Whoever imports closes it.
func (p *Pool) Import(e gpu.Export) (*Memory, error) {
	g, err := p.c.Runtime.Import(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	m, err := newMemory(g, p.c.Mapper, p.c.Mover)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return m, nil
}

// Close ends a Memory that Import gave.
func (m *Memory) Close() error { return m.close() }

// Changed says that bytes [off, end) of inode ino are others now. It returns when every holder has been told.
func (p *Pool) Changed(ino uint32, off, end int64) {
	p.mu.Lock()
	of := p.files[ino]
	if len(of) == 0 || off >= end {
		p.mu.Unlock()
		return
	}
	p.gen++
	var drop []*fileRange
	wake := map[Waker]bool{}
	for r := range of {
		if off >= r.end || end <= r.off {
			continue
		}
		r.now = p.gen
		for h := range r.holds {
			if h.notify != nil {
				h.notify(p.gen)
			}
			if h.waker != nil {
				wake[h.waker] = true
			}
		}
		if len(r.holds) == 0 {
			drop = append(drop, r)
			p.dropLocked(r)
		}
	}
	p.mu.Unlock()
	for w := range wake {
		w.Signal()
	}
	for _, r := range drop {
		_ = r.mem.close() // its memory is lost to us either way
	}
}

// dropLocked forgets a range that nobody holds; the caller closes its memory.
func (p *Pool) dropLocked(r *fileRange) {
	if r.idle != nil {
		p.idle.Remove(r.idle)
		r.idle = nil
	}
	p.unlistLocked(r)
	p.used -= r.size
}
