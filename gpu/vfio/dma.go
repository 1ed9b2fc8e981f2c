package vfio

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

// Map makes n bytes of m from off reachable for the function. It takes the best way that m has, never one after which the
// bytes would land elsewhere:
//
//  1. the user address, of pages: they are pinned. To export them would seal their memfd, and programs could not get it read-only any more;
//  2. a DMA-BUF: device memory, reached by peer-to-peer DMA;
//  3. a memfd of what has no address here.
//
// Type1 knows addresses only. Where the address leads to no pages it follows the page table
// (follow_fault_pfn in Linux's vfio_iommu_type1.c): that pins nothing, and nobody tells it when what is there moves. What a GPU's
// driver may move is therefore refused: the drive would go on to write where it was, into memory that is another's by then.
func (d *Device) Map(m gpu.Memory, off, n int64) (IOVA, error) {
	if off < 0 || n <= 0 || off%4096 != 0 || n%4096 != 0 {
		return 0, fmt.Errorf("%s: map %d bytes from offset %d: both must be multiples of 4096", d.addr, n, off)
	}
	// The last page of an allocation is whole, whatever its size, and pages may have 64 KiB: the IOMMU then knows no smaller ones.
	page := d.m.pageSize()
	size, whole := span.RoundUp(m.Size(), page), span.RoundUp(n, page)
	if off > size || whole > size-off {
		return 0, fmt.Errorf("%s: map %d bytes from offset %d of memory of %d bytes", d.addr, n, off, m.Size())
	}
	if off%page != 0 {
		return 0, fmt.Errorf("%s: map %d bytes from offset %d: pages have %d bytes here", d.addr, n, off, page)
	}
	n = whole
	return d.insert(n, func(at uint64) error { return d.mapMemory(at, m, off, n) })
}

// insert has do map n bytes at a new IOVA.
func (d *Device) insert(n int64, do func(at uint64) error) (IOVA, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, fmt.Errorf("%s: map: %w", d.addr, os.ErrClosed)
	}
	if why := d.removed(); why != nil {
		return 0, why
	}
	at, err := d.iovas.alloc(uint64(n))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.addr, err)
	}
	if err := do(uint64(at)); err != nil {
		_, _ = d.iovas.release(at) // it was just allocated
		return 0, fmt.Errorf("%s: %w", d.addr, err)
	}
	return at, nil
}

func (d *Device) mapMemory(at uint64, m gpu.Memory, off, n int64) error {
	h, owner := m.Host(), m.Reach().Owner
	if d.Backend() == Type1 && !owner.Pinnable() {
		return fmt.Errorf("type1 would not hear when %s moves this %v memory: it is mapped by DMA-BUF only, which takes IOMMUFD", owner, m.Kind())
	}
	if h != nil && (d.Backend() == Type1 || owner == gpu.OwnerPages || !m.Kind().Device()) {
		return d.mapHost(at, h, off, n)
	}
	var refused []error
	for _, kind := range []gpu.ExportKind{gpu.ExportDMABUF, gpu.ExportMemFD} {
		e, err := m.Export(kind)
		if err != nil {
			refused = append(refused, err)
			continue
		}
		err = d.mapExport(at, e, off, n)
		unix.Close(e.FD)
		if errors.Is(err, errNoMapFile) && kind == gpu.ExportMemFD && h != nil {
			return d.mapHost(at, h, off, n) // the same pages
		}
		return err
	}
	if h == nil {
		return fmt.Errorf("%v memory has neither a file nor an address that the IOMMU could be given: %w", m.Kind(), errors.Join(refused...))
	}
	return d.mapHost(at, h, off, n)
}

func (d *Device) mapExport(at uint64, e gpu.Export, off, n int64) error {
	return d.space.mapFile(at, e.FD, e.Kind == gpu.ExportDMABUF, uint64(e.Offset+off), uint64(n))
}

func (d *Device) mapHost(at uint64, h []byte, off, n int64) error {
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(h))))
	if base%uint64(d.m.pageSize()) != 0 {
		return fmt.Errorf("memory at %#x does not begin at a page", base)
	}
	err := d.space.mapUser(at, base+uint64(off), uint64(n))
	keep(h)
	return err
}

// Unmap ends a mapping. The function must not use it any more.
func (d *Device) Unmap(a IOVA) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: unmap: %w", d.addr, os.ErrClosed)
	}
	n, err := d.iovas.size(a)
	if err == nil {
		err = d.space.unmap(uint64(a), n)
	}
	if err == nil {
		_, err = d.iovas.release(a) // not before: what is still mapped cannot be mapped again
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.addr, err)
	}
	return nil
}
