package softctl

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq"
)

// IOVAs begin well away from zero and are never handed out twice, so that a stale or a missing address is a miss and
// not somebody else's memory. Every mapping is followed by a gap.
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
}

// table is the address table at one moment, ordered by base. It is never changed: Map and Unmap replace it.
type table struct{ regions []region }

// find gives the region that holds all of [a, a+n), and a's offset in it. hint is the caller's last hit.
func (t *table) find(a, n uint64, hint *int) (*region, int64, bool) {
	i := *hint
	if i >= len(t.regions) || a-t.regions[i].base >= t.regions[i].size {
		i = sort.Search(len(t.regions), func(i int) bool { return t.regions[i].base > a }) - 1
		if i < 0 {
			return nil, 0, false
		}
		*hint = i
	}
	r := &t.regions[i]
	o := a - r.base
	if o >= r.size || n > r.size-o {
		return nil, 0, false
	}
	return r, int64(o), true
}

// addressSpace is what the controller reaches by DMA.
type addressSpace struct {
	mu    sync.Mutex // Map and Unmap
	next  uint64
	table atomic.Pointer[table]
	mover Mover
}

func newAddressSpace(m Mover) *addressSpace {
	s := &addressSpace{next: iovaFirst, mover: m}
	s.table.Store(&table{})
	return s
}

func (s *addressSpace) add(m gpu.Memory, off, n int64) (nvmeq.IOVA, error) {
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
	s.mu.Lock()
	defer s.mu.Unlock()
	r.base = s.next
	s.next = (r.base + r.size + iovaGap + iovaAlign - 1) &^ (iovaAlign - 1)
	old := s.table.Load().regions
	s.table.Store(&table{append(old[:len(old):len(old)], r)}) // bases only grow: still ordered
	return nvmeq.IOVA(r.base), nil
}

var errNotMapped = errors.New("no mapping begins there")

func (s *addressSpace) remove(a nvmeq.IOVA) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.table.Load().regions
	for i := range old {
		if old[i].base == uint64(a) {
			s.table.Store(&table{append(old[:i:i], old[i+1:]...)})
			return nil
		}
	}
	return fmt.Errorf("unmap IOVA %#x: %w", uint64(a), errNotMapped)
}

// read copies len(p) bytes at a. It reports false where they are not mapped in one piece.
func (s *addressSpace) read(p []byte, a uint64) bool {
	var hint int
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
	var hint int
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

// window is a range of IOVAs that is used again and again: a queue's entries, a shadow doorbell page. It remembers
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
	var hint int
	w.tab, w.host = t, nil
	if r, o, ok := t.find(w.base, w.size, &hint); ok && r.host != nil {
		w.host = r.host[o : o+int64(w.size)]
	}
	return w.host
}

// mapped says whether the whole range can be reached.
func (s *addressSpace) mapped(a, n uint64) bool {
	var hint int
	_, _, ok := s.table.Load().find(a, n, &hint)
	return ok
}
