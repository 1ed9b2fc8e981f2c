package residency

import (
	"container/list"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/lanefs/lanefs/gpu"
)

// errFull says that ranges with holds or pins leave no room.
var errFull = fmt.Errorf("the pool of device memory is full: %w", syscall.ENOMEM)

// plainGranule is the granule of device memory that is not VMM. The libraries place smaller allocations in blocks of this size, and a
// handle of one gives access to the whole block.
const plainGranule = 2 << 20

// Config of a Pool.
type Config struct {
	Runtime gpu.Runtime
	Mapper  Mapper
	Mover   Mover // nil if the CPU can address all memory
	// Host imports memfds of programs where Runtime does not: ordinary pages, which the controller reaches without the GPU. Nil: Runtime does.
	Host gpu.Runtime
	Size int64 // bytes; rounded down to granules
	// Copier has memory that the controller does not reach go through a stage. Nil: such memory is an error.
	Copier Copier
	// Prove reads from the device into memory of the pool, and fails where the bytes are not there. Nil: that Attach succeeds is enough. It
	// is called by New, if there is a Copier.
	Prove func(m *Memory) error
	// Failed says that Runtime has failed: its memory is not freed any more, for the call may not return, and a kernel may use it yet. Nil: it never has.
	Failed func() bool
}

// Pool is the device memory that LaneFS gives to programs.
type Pool struct {
	c       Config
	kind    gpu.MemKind // of the pool's memory
	granule int64
	exports []gpu.ExportKind
	// sealed says that read-only exports exist, so that programs of all users may share memory.
	sealed bool
	// unreached is why the controller does not reach the pool's memory, which then goes through the stage; nil if it does. Set by New.
	unreached error
	stage     stage
	staged    atomic.Int64 // bytes that went through the stage
	left      atomic.Int64 // Left

	mu     sync.Mutex
	used   int64                          // bytes of all memory. Protected by mu, as are the fields below
	gen    uint64                         // the last generation
	files  map[uint32]map[*fileRange]bool // by inode number
	idle   list.List                      // *fileRange without holds, the least recently used first
	pinned map[Key]bool
	count  struct{ loads, loaded, shared, evicted int64 }
	closed bool
	freed  chan struct{} // closed when what free was called for is free; nil: it never was
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
	// The kinds that another process can map come first.
	for _, k := range []gpu.ExportKind{gpu.ExportMemFD, gpu.ExportPOSIX, gpu.ExportDMABUF, gpu.ExportIPC} {
		if slices.Contains(f.Exports, k) {
			p.exports = append(p.exports, k)
		}
	}
	if len(p.exports) == 0 {
		return nil, fmt.Errorf("the runtime %s exports no memory as a descriptor", c.Runtime.Name())
	}
	p.sealed = p.exports[0] == gpu.ExportMemFD
	if c.Copier != nil {
		if err := p.find(c.Prove); err != nil {
			return nil, fmt.Errorf("whether the drive reaches device memory: %w", err)
		}
	}
	return p, nil
}

// Granule and Size return the unit of allocation and the size of the pool in bytes.
func (p *Pool) Granule() int64       { return p.granule }
func (p *Pool) Size() int64          { return p.c.Size }
func (p *Pool) Runtime() gpu.Runtime { return p.c.Runtime }

// Round returns the memory that n bytes take: n rounded up to granules.
func (p *Pool) Round(n int64) int64 { return (n + p.granule - 1) / p.granule * p.granule }

// Kind returns the kind as which the pool prefers to export memory.
func (p *Pool) Kind() gpu.ExportKind { return p.exports[0] }

// Key returns the key of a file's ranges for a program of user uid.
func (p *Pool) Key(ino, generation, uid uint32) Key {
	if p.sealed {
		uid = 0
	}
	return Key{ino, generation, uid}
}

// Unreached is why the controller does not reach the pool's memory, so that its bytes go through a stage; nil if it does.
func (p *Pool) Unreached() error { return p.unreached }

// Pin excludes ranges of a file, present and future ones, from eviction. With on false it ends that.
func (p *Pool) Pin(k Key, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.pinned[k] = true
	} else {
		delete(p.pinned, k)
	}
}

// Close frees all ranges without holds, and the stage. The others are freed when their holds are released. No transfer is under way.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	var all []*fileRange
	for p.idle.Len() > 0 {
		r := p.idle.Front().Value.(*fileRange)
		p.dropLocked(r)
		all = append(all, r)
	}
	p.mu.Unlock()
	for _, r := range all {
		_ = r.mem.close()
	}
	p.awaitFrees()
	return p.stage.close()
}
