package residency

import (
	"container/list"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/lanefs/lanefs/gpu"
)

// errFull says that what is held leaves no room.
var errFull = fmt.Errorf("the pool of device memory is full: %w", syscall.ENOMEM)

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

// Pin keeps what is resident of a file now or later from being evicted, or lets it go again.
func (p *Pool) Pin(k Key, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.pinned[k] = true
	} else {
		delete(p.pinned, k)
	}
}

// Close frees what nobody holds. Holds that are left free theirs as they are released.
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
	return nil
}
