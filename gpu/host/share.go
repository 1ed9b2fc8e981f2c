package host

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/span"
	"golang.org/x/sys/unix"
)

// Export implements gpu.Memory. Device memory is a memfd and exports as one; host memory does not.
func (m *memory) Export(want gpu.ExportKind) (gpu.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return gpu.Export{}, fmt.Errorf("host runtime: export: %w", os.ErrClosed)
	}
	if m.bank != nil {
		return m.exportBank(want)
	}
	if want != gpu.ExportMemFD {
		return gpu.Export{}, fmt.Errorf("host runtime: export as %s: this runtime exports memfds only", want)
	}
	if m.fd < 0 {
		return gpu.Export{}, fmt.Errorf("host runtime: %s memory cannot be exported: allocate a device kind", m.kind)
	}
	return m.exportLocked(0)
}

func (m *memory) export(seals int) (gpu.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return gpu.Export{}, fmt.Errorf("host runtime: export: %w", os.ErrClosed)
	}
	return m.exportLocked(seals)
}

// exportLocked hands out the memfd, sealed with seals, and against changes of its length and more seals: a receiver can neither shrink it nor
// add a seal that would make the next export fail. Memory that was imported is not sealed, nor is a range that is to grow. The caller
// holds mu.
func (m *memory) exportLocked(seals int) (gpu.Export, error) {
	if !m.imported && (m.reserved == 0 || m.size.Load() == m.reserved) {
		seals |= unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	}
	have, err := unix.FcntlInt(uintptr(m.fd), unix.F_GET_SEALS, 0)
	if err == nil && have&seals != seals {
		_, err = unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return gpu.Export{}, fmt.Errorf("host runtime: export: sealing the memfd: %w", err)
	}
	fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return gpu.Export{}, fmt.Errorf("host runtime: export: %w", err)
	}
	return gpu.Export{FD: fd, Offset: m.offset, Size: m.size.Load(), Kind: gpu.ExportMemFD}, nil
}

// ExportReadOnly is Export for receivers that may not write: from now on the memfd cannot be mapped writable, or written to, but through
// mappings that exist. The runtime has one. Memory that was exported by Export before cannot be exported read-only any more.
func (m *memory) ExportReadOnly(want gpu.ExportKind) (gpu.Export, error) {
	if want != gpu.ExportMemFD || m.bank != nil || m.fd < 0 {
		return m.Export(want)
	}
	return m.export(unix.F_SEAL_FUTURE_WRITE)
}

// Import implements gpu.Runtime for memfds. A memfd that its owner could shrink under us is sealed against that, or
// refused: a later access would kill the process.
func (r *Runtime) Import(e gpu.Export) (gpu.Memory, error) {
	if e.Kind != gpu.ExportMemFD {
		return nil, fmt.Errorf("host runtime: import a %s: this runtime imports memfds only", e.Kind)
	}
	if err := span.Check("host runtime", e.Size); err != nil {
		return nil, err
	}
	if e.Offset < 0 || e.Offset%pageSize != 0 {
		return nil, fmt.Errorf("host runtime: import at offset %d: must be a multiple of the page size %d", e.Offset, pageSize)
	}
	fd, err := unix.FcntlInt(uintptr(e.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("host runtime: import descriptor %d: %w", e.FD, err)
	}
	m := &memory{r: r, kind: gpu.DevicePlain, owner: gpu.OwnerPages, fd: fd, offset: e.Offset, imported: true}
	m.size.Store(e.Size)
	if err := sealShrink(fd); err != nil {
		m.release()
		return nil, err
	}
	// The length is read after sealing: it cannot become less.
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		m.release()
		return nil, fmt.Errorf("host runtime: import: %w", err)
	}
	if stat.Size-e.Offset < e.Size {
		m.release()
		return nil, fmt.Errorf("host runtime: import %d bytes from offset %d: the memfd has %d", e.Size, e.Offset, stat.Size)
	}
	b, err := mapNew(span.RoundUp(e.Size, pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, e.Offset)
	if err != nil {
		m.release()
		return nil, fmt.Errorf("host runtime: map the import: %w", err)
	}
	m.mapping = b
	return r.adopt(m)
}

func sealShrink(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("host runtime: import: descriptor is not a memfd: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK != 0 {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return fmt.Errorf("host runtime: import: the memfd could shrink and cannot be sealed; seal it with F_SEAL_SHRINK: %w", err)
	}
	return nil
}
