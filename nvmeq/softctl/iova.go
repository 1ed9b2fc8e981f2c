package softctl

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// IOVAs begin well away from zero and are never handed out twice, so that a stale or a missing address is a miss and
// not another mapping's memory. Every mapping is followed by a gap.
const (
	iovaFirst = uint64(0x10_0000_0000)
	iovaAlign = uint64(64 << 10) // the largest memory page
	iovaGap   = uint64(64 << 10)
)

// region is one mapping.
type region struct {
	base, size uint64
	mem        gpu.Memory
	off        int64  // of the mapping in mem
	host       []byte // nil where mem has no host view
	stays      bool   // ordinary pages of this process, which keep their place until they are unmapped
}

// addressSpace is what the controller reaches by DMA.
type addressSpace struct {
	mu    sync.Mutex // Map and Unmap
	next  uint64
	table atomic.Pointer[table]
	mover copyengine.Mover
}

func newAddressSpace(m copyengine.Mover) *addressSpace {
	s := &addressSpace{next: iovaFirst, mover: m}
	s.table.Store(&table{})
	return s
}

func (s *addressSpace) add(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if off < 0 || n <= 0 || off%pageMin != 0 || n%pageMin != 0 {
		return 0, fmt.Errorf("map %d bytes from offset %d: both must be multiples of %d", n, off, pageMin)
	}
	if off > m.Size() || n > m.Size()-off {
		return 0, fmt.Errorf("map %d bytes from offset %d of memory of %d bytes", n, off, m.Size())
	}
	r := region{size: uint64(n), mem: m, off: off}
	if h := m.Host(); int64(len(h)) >= off+n {
		r.host = h[off : off+n : off+n]
	} else if s.mover == nil {
		return 0, fmt.Errorf("map %v memory: the CPU cannot address it, and no Mover was given that could", m.Kind())
	}
	r.stays = r.host != nil && m.Reach().Owner == gpu.OwnerPages
	s.mu.Lock()
	defer s.mu.Unlock()
	r.base = s.next
	s.next = (r.base + r.size + iovaGap + iovaAlign - 1) &^ (iovaAlign - 1)
	s.table.Store(&table{s.table.Load().root.insert(&r)})
	return nvme.IOVA(r.base), nil
}

// borrowed says that the memory at a may be cut up by whose it is.
func (s *addressSpace) borrowed(a nvme.IOVA) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r *region
	if _, _, ok := s.table.Load().find(uint64(a), 1, &r); ok {
		r.stays = false
	}
}

var errNotMapped = errors.New("no mapping begins there")

func (s *addressSpace) remove(a nvme.IOVA) (*region, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r *region
	s.table.Load().find(uint64(a), 1, &r)
	root, found := s.table.Load().root.remove(uint64(a))
	if !found {
		return nil, fmt.Errorf("unmap IOVA %#x: %w", uint64(a), errNotMapped)
	}
	s.table.Store(&table{root})
	return r, nil
}

// read copies len(p) bytes at a. It reports false where they are not mapped in one piece.
func (s *addressSpace) read(p []byte, a uint64) bool {
	var hint *region
	r, o, ok := s.table.Load().find(a, uint64(len(p)), &hint)
	if !ok {
		return false
	}
	if r.host != nil {
		copy(p, r.host[o:])
		return true
	}
	return s.mover.Read(p, r.mem, r.off+o) == nil
}

// write copies p to a, likewise.
func (s *addressSpace) write(a uint64, p []byte) bool {
	var hint *region
	r, o, ok := s.table.Load().find(a, uint64(len(p)), &hint)
	if !ok {
		return false
	}
	if r.host != nil {
		copy(r.host[o:], p)
		return true
	}
	return s.mover.Write(r.mem, r.off+o, p) == nil
}

// window is a range of IOVAs that is used again and again: a queue's entries. It remembers
// where the range is until the address table changes.
type window struct {
	base uint64
	size uint64
	tab  *table
	host []byte
}

// bytes is the CPU's view of the window: nil where the range is not mapped or has none.
func (w *window) bytes(s *addressSpace) []byte {
	t := s.table.Load()
	if w.tab == t {
		return w.host
	}
	var hint *region
	w.tab, w.host = t, nil
	if r, o, ok := t.find(w.base, w.size, &hint); ok && r.host != nil {
		w.host = r.host[o : o+int64(w.size)]
	}
	return w.host
}

// mapped says whether the whole range can be reached.
func (s *addressSpace) mapped(a, n uint64) bool {
	var hint *region
	_, _, ok := s.table.Load().find(a, n, &hint)
	return ok
}
