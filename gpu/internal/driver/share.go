package driver

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

// Export implements gpu.Memory: a POSIX handle for the same library in other processes, a DMA-BUF for other drivers.
func (m *deviceMemory) Export(want gpu.ExportKind) (gpu.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return gpu.Export{}, fmt.Errorf("%s: export: %w", m.d.prefix, os.ErrClosed)
	}
	var fd int32
	var err error
	switch {
	case want == gpu.ExportDMABUF && m.d.cfg.ExportDMABUF != nil:
		fd, err = m.d.cfg.ExportDMABUF(m.d, m.addr, m.size.Load())
	case want == gpu.ExportPOSIX || want == gpu.ExportDMABUF:
		fd, err = m.exportHandleLocked()
	case want == gpu.ExportIPC:
		err = fmt.Errorf("as an IPC handle: allocate %s memory", gpu.DevicePlain)
	default:
		err = fmt.Errorf("as a %s: this memory is exported as a POSIX handle or a DMA-BUF", want)
	}
	if err != nil {
		return gpu.Export{}, fmt.Errorf("%s: export %d bytes of %s memory: %w", m.d.prefix, m.size.Load(), m.kind, err)
	}
	unix.CloseOnExec(int(fd))
	return gpu.Export{FD: int(fd), Size: m.size.Load(), Kind: want}, nil
}

func (m *deviceMemory) exportHandleLocked() (fd int32, err error) {
	if m.d.cfg.Prop.HandleTypes&HandlePosixFD == 0 {
		return 0, errors.New("as a POSIX handle: this device has none")
	}
	if len(m.pieces) != 1 {
		return 0, fmt.Errorf("as a POSIX handle: the range is %d pieces of physical memory, a handle is one", len(m.pieces))
	}
	err = m.d.Do(m.d.api.Export, uintptr(unsafe.Pointer(&fd)), uintptr(m.pieces[0].handle), HandlePosixFD, 0)
	return fd, err
}

// Import implements gpu.Runtime for POSIX handles and legacy IPC. The library takes a reference of its own; the descriptor stays the
// caller's.
func (d *Device) Import(e gpu.Export) (gpu.Memory, error) {
	if e.Kind == gpu.ExportLegacy {
		return d.importLegacy(e)
	}
	if e.Kind != gpu.ExportPOSIX {
		return nil, fmt.Errorf("%s: import of a %s: this device maps POSIX handles of its own library only", d.prefix, e.Kind)
	}
	if err := d.CheckImport(e); err != nil {
		return nil, err
	}
	if e.Offset != 0 {
		return nil, fmt.Errorf("%s: import at offset %d: a handle is mapped from its beginning", d.prefix, e.Offset)
	}
	var handle uint64
	fd := int32(e.FD)
	var err error
	if d.api.ImportByAddress {
		err = d.Do(d.api.Import, uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&fd)), HandlePosixFD)
	} else {
		err = d.Do(d.api.Import, uintptr(unsafe.Pointer(&handle)), uintptr(e.FD), HandlePosixFD)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: import descriptor %d: %w", d.prefix, e.FD, err)
	}
	size := span.RoundUp(e.Size, d.cfg.Facts.Granularity)
	m, err := d.reserve(gpu.DeviceVMM, 0, size)
	if err != nil {
		return nil, errors.Join(err, d.Do(d.api.Release, uintptr(handle)))
	}
	m.mu.Lock()
	err = m.mapLocked(piece{handle, size})
	m.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// CheckImport says whether e can be a descriptor with memory behind it.
func (d *Device) CheckImport(e gpu.Export) error {
	if err := span.Check(d.prefix, e.Size); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(e.FD), unix.F_GETFD, 0); err != nil {
		return fmt.Errorf("%s: import descriptor %d: %w", d.prefix, e.FD, err)
	}
	return d.open()
}
