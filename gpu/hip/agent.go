package hip

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// hsaDo calls a function of HSA's.
//
//go:uintptrescapes
func (l *library) hsaDo(c driver.Call, args ...uintptr) error {
	code := driver.Raw(c, args...)
	if code == 0 {
		return nil
	}
	var text uintptr
	driver.Raw(l.statusString, uintptr(code), uintptr(unsafe.Pointer(&text)))
	return &driver.Error{Call: c.Name, Code: int(code), Name: "hsa_status_t", Text: dynlib.String(text)}
}

// pointer is what HSA knows of the allocation that a lies in.
func (l *library) pointer(a gpu.Addr) (pointerInfo, error) {
	var p pointerInfo
	p.Size = uint32(unsafe.Sizeof(p))
	if err := l.hsaDo(l.pointerInfo, uintptr(a), uintptr(unsafe.Pointer(&p)), 0, 0, 0); err != nil {
		return p, err
	}
	if p.Type == pointerTypeUnknown {
		return p, fmt.Errorf("%s: address %#x is of no allocation", l.pointerInfo.Name, uint64(a))
	}
	return p, nil
}

// findAgent finds the device among HSA's agents, and its architecture: it owns what HIP allocates on it.
func (l *library) findAgent(ordinal int) (owner agent, arch string, err error) {
	var p pointerInfo
	if err := l.withPage(ordinal, func(a uintptr) (err error) {
		p, err = l.pointer(gpu.Addr(a))
		return err
	}); err != nil {
		return owner, "", err
	}
	var name [hsaAgentNameLength]byte
	if err := l.hsaDo(l.agentInfo, uintptr(p.Owner.Handle), hsaAgentInfoName, uintptr(unsafe.Pointer(&name[0]))); err != nil {
		return owner, "", err
	}
	return p.Owner, dynlib.Buffer(name[:]), nil
}

// withPage runs f with a page of the device's memory, before there is a Device.
func (l *library) withPage(ordinal int, f func(a uintptr) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var a uintptr
	if err := l.Early(l.SetCurrent, uintptr(ordinal)); err != nil {
		return err
	}
	if err := l.Early(l.malloc, uintptr(unsafe.Pointer(&a)), devicePage); err != nil {
		return err
	}
	return errors.Join(f(a), l.Early(l.free, a))
}

// exportsDMABUF tries it: the library may have the call, and the kernel's driver may not.
func (l *library) exportsDMABUF(ordinal int) (has bool, err error) {
	if !l.exportDMABUF.Have() {
		return false, nil
	}
	err = l.withPage(ordinal, func(a uintptr) error {
		var fd int32
		var offset uint64
		has = l.hsaDo(l.exportDMABUF, a, devicePage, uintptr(unsafe.Pointer(&fd)), uintptr(unsafe.Pointer(&offset))) == nil
		if !has {
			return nil
		}
		return l.hsaDo(l.closeDMABUF, uintptr(fd))
	})
	return has, err
}
