package cuda

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// Export implements gpu.Memory: a POSIX handle for CUDA in other processes, a DMA-BUF for other drivers.
func (m *deviceMemory) Export(want gpu.ExportKind) (gpu.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return gpu.Export{}, fmt.Errorf("cuda runtime: export: %w", os.ErrClosed)
	}
	size := m.size.Load()
	var fd int32
	var err error
	switch want {
	case gpu.ExportPOSIX:
		if m.r.prop.HandleTypes&handlePosixFD == 0 {
			return gpu.Export{}, errors.New("cuda runtime: export as a POSIX handle: this device has none")
		}
		if len(m.pieces) != 1 {
			return gpu.Export{}, fmt.Errorf("cuda runtime: export as a POSIX handle: the range is %d pieces of physical memory, a handle is one", len(m.pieces))
		}
		err = m.r.do("cuMemExportToShareableHandle", m.r.lib.memExport, uintptr(unsafe.Pointer(&fd)), uintptr(m.pieces[0].handle), handlePosixFD, 0)
	case gpu.ExportDMABUF:
		if m.r.lib.memGetHandleForAddressRange == 0 {
			return gpu.Export{}, fmt.Errorf("cuda runtime: export as a DMA-BUF: cuMemGetHandleForAddressRange needs CUDA 11.7, found %s", m.r.lib.versionString())
		}
		err = m.r.do("cuMemGetHandleForAddressRange", m.r.lib.memGetHandleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(m.addr), uintptr(size), rangeDMABUF, 0)
	default:
		return gpu.Export{}, fmt.Errorf("cuda runtime: export of kind %d: this runtime exports POSIX handles and DMA-BUFs", want)
	}
	if err != nil {
		return gpu.Export{}, fmt.Errorf("cuda runtime: export %d bytes of %s memory: %w", size, m.kind, err)
	}
	unix.CloseOnExec(int(fd))
	return gpu.Export{FD: int(fd), Size: size, Kind: want}, nil
}

// Import implements gpu.Runtime for POSIX handles. The driver takes a reference of its own; the descriptor stays the
// caller's.
func (r *Runtime) Import(e gpu.Export) (gpu.Memory, error) {
	if e.Kind != gpu.ExportPOSIX {
		return nil, fmt.Errorf("cuda runtime: import of kind %d: CUDA maps POSIX handles of its own only", e.Kind)
	}
	if err := checkSize(e.Size); err != nil {
		return nil, err
	}
	if e.Offset != 0 {
		return nil, fmt.Errorf("cuda runtime: import at offset %d: a handle is mapped from its beginning", e.Offset)
	}
	if _, err := unix.FcntlInt(uintptr(e.FD), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("cuda runtime: import descriptor %d: %w", e.FD, err)
	}
	var handle uint64
	if err := r.do("cuMemImportFromShareableHandle", r.lib.memImport, uintptr(unsafe.Pointer(&handle)), uintptr(e.FD), handlePosixFD); err != nil {
		return nil, fmt.Errorf("cuda runtime: import descriptor %d: %w", e.FD, err)
	}
	size := roundUp(e.Size, r.facts.Granularity)
	m, err := r.reserve(gpu.DeviceVMM, 0, size)
	if err != nil {
		return nil, errors.Join(err, r.do("cuMemRelease", r.lib.memRelease, uintptr(handle)))
	}
	m.mu.Lock()
	err = m.mapLocked(piece{handle, size})
	m.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}
