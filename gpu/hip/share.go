package hip

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
)

// export hands out memory that is not VMM.
func (r *Runtime) export(a gpu.Addr, n int64, want gpu.ExportKind) (gpu.Export, error) {
	switch want {
	case gpu.ExportDMABUF:
		return r.exportDMABUF(a, n)
	case gpu.ExportIPC:
		return r.exportIPC(a, n)
	case gpu.ExportPOSIX:
		return gpu.Export{}, fmt.Errorf("as a POSIX handle: allocate %s memory", gpu.DeviceVMM)
	}
	return gpu.Export{}, fmt.Errorf("as a %s: this memory is exported as a DMA-BUF or an IPC handle", want)
}

// exportDMABUF has HSA make a DMA-BUF, mapped for PCIe where the library knows of it. HSA's descriptor is closed by HSA;
// ours is a duplicate.
func (r *Runtime) exportDMABUF(a gpu.Addr, n int64) (gpu.Export, error) {
	l := r.lib
	if !l.exportDMABUF.Have() {
		return gpu.Export{}, fmt.Errorf("as a DMA-BUF: %s needs ROCm 5.3, found %s", l.exportDMABUF.Name, l.versionString())
	}
	var fd int32
	var offset uint64
	var err error
	if l.exportDMABUF2.Have() {
		err = l.hsaDo(l.exportDMABUF2, uintptr(a), uintptr(n), uintptr(unsafe.Pointer(&fd)), uintptr(unsafe.Pointer(&offset)), dmabufMappingPCIe)
	}
	if !l.exportDMABUF2.Have() || err != nil { // a device that has no PCIe mapping has the ordinary one
		err = l.hsaDo(l.exportDMABUF, uintptr(a), uintptr(n), uintptr(unsafe.Pointer(&fd)), uintptr(unsafe.Pointer(&offset)))
	}
	if err != nil {
		return gpu.Export{}, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, l.hsaDo(l.closeDMABUF, uintptr(fd))); err != nil {
		return gpu.Export{}, err
	}
	return gpu.Export{FD: own, Offset: int64(offset), Size: n, Kind: gpu.ExportDMABUF}, nil
}

// exportIPC puts the IPC handle of the whole allocation into a memfd, so that it travels as any other export does.
func (r *Runtime) exportIPC(a gpu.Addr, n int64) (gpu.Export, error) {
	p, err := r.lib.pointer(a)
	if err != nil {
		return gpu.Export{}, err
	}
	message := ipcMessage{Magic: ipcMagic, Bytes: p.Bytes}
	if err := r.lib.hsaDo(r.lib.ipcCreate, p.AgentBase, uintptr(p.Bytes), uintptr(unsafe.Pointer(&message.Handle))); err != nil {
		return gpu.Export{}, err
	}
	fd, err := message.send()
	if err != nil {
		return gpu.Export{}, err
	}
	return gpu.Export{FD: fd, Offset: int64(uintptr(a) - p.AgentBase), Size: n, Kind: gpu.ExportIPC}, nil
}

// Import implements gpu.Runtime. The libraries take a reference of their own; the descriptor stays the caller's.
func (r *Runtime) Import(e gpu.Export) (gpu.Memory, error) {
	var attach func(gpu.Export) (a uintptr, bytes uint64, detach driver.Call, err error)
	switch e.Kind {
	case gpu.ExportPOSIX:
		return r.importHandle(e)
	case gpu.ExportLegacy:
		return r.Device.Import(e)
	case gpu.ExportDMABUF:
		attach = r.mapDMABUF
	case gpu.ExportIPC:
		attach = r.attachIPC
	default:
		return nil, fmt.Errorf("hip runtime: import of a %s: HIP maps POSIX handles, DMA-BUFs and IPC handles", e.Kind)
	}
	if err := r.CheckImport(e); err != nil {
		return nil, err
	}
	base, bytes, detach, err := attach(e)
	if err != nil {
		return nil, fmt.Errorf("hip runtime: import descriptor %d: %w", e.FD, err)
	}
	free := func() error { return r.lib.hsaDo(detach, base) }
	if e.Offset < 0 || uint64(e.Offset) > bytes || uint64(e.Size) > bytes-uint64(e.Offset) {
		return nil, errors.Join(fmt.Errorf("hip runtime: import %d bytes from offset %d: there are %d", e.Size, e.Offset, bytes), free())
	}
	return r.Adopt(&driver.Block{Kind: gpu.DevicePlain, Reach: r.DeviceReach(), Addr: gpu.Addr(base) + gpu.Addr(e.Offset),
		Size: e.Size, Free: free}), nil
}

func (r *Runtime) importHandle(e gpu.Export) (gpu.Memory, error) {
	if r.Facts().Granularity == 0 {
		return nil, errors.New("hip runtime: import of a POSIX handle: this device has no virtual memory management")
	}
	return r.Device.Import(e)
}

// mapDMABUF maps a DMA-BUF of whatever device for the GPU.
func (r *Runtime) mapDMABUF(e gpu.Export) (base uintptr, bytes uint64, unmap driver.Call, err error) {
	one := r.agent
	err = r.lib.hsaDo(r.lib.interopMap, 1, uintptr(unsafe.Pointer(&one)), uintptr(e.FD), 0, uintptr(unsafe.Pointer(&bytes)), uintptr(unsafe.Pointer(&base)), 0, 0)
	return base, bytes, r.lib.interopUnmap, err
}

// attachIPC maps what another HIP, or this one, has exported.
func (r *Runtime) attachIPC(e gpu.Export) (base uintptr, bytes uint64, detach driver.Call, err error) {
	message, err := receiveIPC(e.FD)
	if err != nil {
		return 0, 0, detach, err
	}
	one := r.agent
	err = r.lib.hsaDo(r.lib.ipcAttach, uintptr(unsafe.Pointer(&message.Handle)), uintptr(message.Bytes), 1, uintptr(unsafe.Pointer(&one)), uintptr(unsafe.Pointer(&base)))
	if err != nil {
		return 0, 0, detach, err
	}
	// The sender of the message may not have told the truth about the size.
	p, err := r.lib.pointer(gpu.Addr(base))
	if err == nil && p.Bytes < message.Bytes {
		err = fmt.Errorf("an IPC handle of %d bytes says that it has %d", p.Bytes, message.Bytes)
	}
	if err != nil {
		return 0, 0, detach, errors.Join(err, r.lib.hsaDo(r.lib.ipcDetach, base))
	}
	return base, message.Bytes, r.lib.ipcDetach, nil
}
