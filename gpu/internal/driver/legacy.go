package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// Legacy IPC reaches what a program got by cudaMalloc or hipMalloc, which has no descriptor. The program puts the handle into a memfd, so that
// it travels as any other export does: 8 bytes " LFSIPC2", 8 the size of the allocation, 64 the handle, in this machine's byte order.
//
// A driver opens any handle of a process of the same user, root those of all, and a handle can be guessed. So who imports one on behalf of
// another must know that it is the same user's.

const (
	legacyMagic   = 0x3243504953464c20
	legacyHandle  = 64 // CUipcMemHandle, hipIpcMemHandle_t
	legacyMessage = 8 + 8 + legacyHandle
	lazyPeer      = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
)

// legacies are the handles that are open: a handle is opened once, whatever a library does with the second time.
type legacies struct {
	mu   sync.Mutex
	open map[[legacyHandle]byte]*legacy // protected by mu
}

type legacy struct {
	addr uint64
	uses int
}

// HasLegacy says whether the library has legacy IPC.
func (a *API) HasLegacy() bool {
	return a.OpenIPC.Have() && a.CloseIPC.Have() && a.AddressRange.Have()
}

// importLegacy maps the memory behind a legacy handle.
func (d *Device) importLegacy(e gpu.Export) (gpu.Memory, error) {
	if !d.api.HasLegacy() {
		return nil, fmt.Errorf("%s: import of a %s: the library has none", d.prefix, e.Kind)
	}
	if err := d.CheckImport(e); err != nil {
		return nil, err
	}
	var b [legacyMessage + 1]byte
	n, err := unix.Pread(e.FD, b[:], 0)
	if err == nil && (n != legacyMessage || binary.NativeEndian.Uint64(b[:]) != legacyMagic) {
		err = fmt.Errorf("%d bytes that are no legacy IPC handle", n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: import descriptor %d: %w", d.prefix, e.FD, err)
	}
	handle := [legacyHandle]byte(b[16:legacyMessage])
	addr, err := d.openLegacy(&handle)
	if err != nil {
		return nil, fmt.Errorf("%s: import of a %s: %w", d.prefix, e.Kind, err)
	}
	free := func() error { return d.closeLegacy(handle) }
	// What the program says of the size proves nothing, and a copy beyond the end would be the end of the context.
	var base, size uint64
	err = d.Do(d.api.AddressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&size)), uintptr(addr))
	if size -= min(addr-base, size); err == nil && (e.Offset < 0 || uint64(e.Offset) > size || uint64(e.Size) > size-uint64(e.Offset)) {
		err = fmt.Errorf("%d bytes at %d of an allocation of %d", e.Size, e.Offset, size)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: import of a %s: %w", d.prefix, e.Kind, err), free())
	}
	return d.Adopt(&Block{Kind: gpu.DevicePlain, Reach: d.DeviceReach(), Addr: gpu.Addr(addr) + gpu.Addr(e.Offset), Size: e.Size, Free: free}), nil
}

func (d *Device) openLegacy(handle *[legacyHandle]byte) (uint64, error) {
	d.legacies.mu.Lock()
	defer d.legacies.mu.Unlock()
	if l := d.legacies.open[*handle]; l != nil {
		l.uses++
		return l.addr, nil
	}
	var addr uint64
	if err := d.openHandle(&addr, handle); err != nil {
		return 0, err
	}
	if d.legacies.open == nil {
		d.legacies.open = map[[legacyHandle]byte]*legacy{}
	}
	d.legacies.open[*handle] = &legacy{addr, 1}
	return addr, nil
}

// openHandle passes the handle as C passes a struct of 64 bytes by value: on amd64 on the stack, behind six registers of which two are used
// (System V ABI 3.2.3, class MEMORY), on arm64 by the address of a copy (AAPCS64 6.8.2, B.4).
func (d *Device) openHandle(addr *uint64, handle *[legacyHandle]byte) error {
	if runtime.GOARCH == "arm64" {
		byValue := *handle
		return d.Do(d.api.OpenIPC, uintptr(unsafe.Pointer(addr)), uintptr(unsafe.Pointer(&byValue)), lazyPeer)
	}
	var w [legacyHandle / 8]uintptr
	for i := range w {
		w[i] = uintptr(binary.NativeEndian.Uint64(handle[8*i:]))
	}
	return d.Do(d.api.OpenIPC, uintptr(unsafe.Pointer(addr)), lazyPeer, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
}

func (d *Device) closeLegacy(handle [legacyHandle]byte) error {
	d.legacies.mu.Lock()
	defer d.legacies.mu.Unlock()
	l := d.legacies.open[handle]
	if l.uses--; l.uses > 0 {
		return nil
	}
	delete(d.legacies.open, handle)
	return d.Do(d.api.CloseIPC, uintptr(l.addr))
}
