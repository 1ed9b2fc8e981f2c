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
	mu   sync.Mutex                     // held for no call of the library: to open a handle may wait for the process that it is of
	open map[[legacyHandle]byte]*legacy // protected by mu
}

type legacy struct {
	holders int // memories, and calls under way; protected by legacies.mu

	mu   sync.Mutex
	addr uint64 // protected by mu
	uses int    // memories; protected by mu
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

// hold finds a handle's entry, or makes it.
func (l *legacies) hold(handle *[legacyHandle]byte) *legacy {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[[legacyHandle]byte]*legacy{}
	}
	e := l.open[*handle]
	if e == nil {
		e = &legacy{}
		l.open[*handle] = e
	}
	e.holders++
	return e
}

func (l *legacies) drop(handle *[legacyHandle]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.open[*handle]
	if e.holders--; e.holders == 0 {
		delete(l.open, *handle)
	}
}

func (d *Device) openLegacy(handle *[legacyHandle]byte) (addr uint64, err error) {
	e := d.legacies.hold(handle)
	e.mu.Lock()
	if e.uses == 0 {
		err = d.openHandle(&e.addr, handle)
	}
	if err == nil {
		e.uses++
		addr = e.addr
	}
	e.mu.Unlock()
	if err != nil {
		d.legacies.drop(handle)
	}
	return addr, err
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

// closeLegacy ends the use of one memory, whose hold the entry still has.
func (d *Device) closeLegacy(handle [legacyHandle]byte) (err error) {
	e := d.legacies.hold(&handle)
	e.mu.Lock()
	if e.uses--; e.uses == 0 {
		err = d.Do(d.api.CloseIPC, uintptr(e.addr))
	}
	e.mu.Unlock()
	d.legacies.drop(&handle)
	d.legacies.drop(&handle)
	return err
}
