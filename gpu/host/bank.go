package host

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/fault"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

// Bank is memory of a PCI function, a BAR, that this runtime takes its device memory from, in place of memfds. Device allocations are
// then pieces of it, and export as DMA-BUF. The owner of the function closes it after the Runtime.
type Bank struct {
	Name   string     // the function's address
	Bytes  []byte     // all of it, mapped at a page
	DMABUF gpu.Export // all of it, for the IOMMU; FD stays the owner's
	// Check is why the bytes are no longer reachable by way of DMABUF, or at all; nil while they are.
	Check func() error
}

// bank is a Bank and what of it is taken. Pieces are pages; the first gap that is large enough is used.
type bank struct {
	Bank
	seen  atomic.Uint32 // what Arrived has loaded, so that the load stays
	mu    sync.Mutex
	taken []piece // protected by mu: ascending, apart
}

type piece struct{ off, n int64 }

func newBank(b *Bank) (*bank, error) {
	n := int64(len(b.Bytes))
	if n == 0 || n%pageSize != 0 {
		return nil, fmt.Errorf("host runtime: %d bytes of %s cannot be device memory: want whole pages", n, b.Name)
	}
	if b.DMABUF.Size != n || b.DMABUF.Kind != gpu.ExportDMABUF {
		return nil, fmt.Errorf("host runtime: %s has %d bytes and a DMA-BUF of %d", b.Name, n, b.DMABUF.Size)
	}
	return &bank{Bank: *b}, nil
}

// Revoked implements gpu.Keeper.
func (b *bank) Revoked() error {
	if b.Check == nil {
		return nil
	}
	return b.Check()
}

// Arrived implements gpu.Keeper: a load from the BAR. It follows, on the same way, what the CPU has stored there and what devices have written (PCI Express
// Base 6.0 §2.4.1, entries B2a and D2a).
func (b *bank) Arrived() error {
	if fault.Guard(func() { b.seen.Store(atomic.LoadUint32((*uint32)(unsafe.Pointer(&b.Bytes[0])))) }) != nil {
		return fmt.Errorf("host runtime: %s: its memory is not there any more", b.Name)
	}
	return nil
}

// take gives n bytes, a multiple of the page size, at a multiple of align.
func (b *bank) take(n, align int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var at int64
	for i := 0; ; i++ {
		end := int64(len(b.Bytes))
		if i < len(b.taken) {
			end = b.taken[i].off
		}
		if at = span.RoundUp(at, align); n <= end-at {
			b.taken = slices.Insert(b.taken, i, piece{at, n})
			return at, nil
		}
		if i == len(b.taken) {
			return 0, fmt.Errorf("host runtime: no %d bytes in one piece are free in %s", n, b.Name)
		}
		at = b.taken[i].off + b.taken[i].n
	}
}

func (b *bank) give(off int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(b.taken, off, func(p piece, o int64) int { return cmp.Compare(p.off, o) }); ok {
		b.taken = slices.Delete(b.taken, i, i+1)
	}
}

// allocBank makes a memory of size usable bytes out of the bank.
func (r *Runtime) allocBank(kind gpu.MemKind, size, align int64) (*memory, error) {
	m := &memory{r: r, kind: kind, fd: -1}
	length := span.RoundUp(size, align)
	if err := r.charge(length); err != nil {
		return nil, err
	}
	m.charged = length
	off, err := r.bank.take(length, align)
	if err != nil {
		m.release()
		return nil, err
	}
	m.size.Store(size)
	m.bank, m.offset, m.mapping, m.borrowed = r.bank, off, r.bank.Bytes[off:off+length:off+length], true
	clear(m.mapping) // as fresh pages are
	return r.adopt(m)
}

// exportBank hands the bank's DMA-BUF out; the piece is at an offset in it.
func (m *memory) exportBank(want gpu.ExportKind) (gpu.Export, error) {
	if want != gpu.ExportDMABUF {
		return gpu.Export{}, fmt.Errorf("host runtime: export as %s: device memory is in %s, which exports as DMA-BUF only", want, m.bank.Name)
	}
	all := m.bank.DMABUF
	fd, err := unix.FcntlInt(uintptr(all.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return gpu.Export{}, fmt.Errorf("host runtime: export: %w", os.NewSyscallError("dup", err))
	}
	return gpu.Export{FD: fd, Offset: all.Offset + m.offset, Size: m.size.Load(), Kind: gpu.ExportDMABUF}, nil
}
