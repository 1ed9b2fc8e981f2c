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
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var a uintptr
	if err := l.Early(l.SetCurrent, uintptr(ordinal)); err != nil {
		return owner, "", err
	}
	if err := l.Early(l.malloc, uintptr(unsafe.Pointer(&a)), devicePage); err != nil {
		return owner, "", err
	}
	p, err := l.pointer(gpu.Addr(a))
	if err := errors.Join(err, l.Early(l.free, a)); err != nil {
		return owner, "", err
	}
	var name [hsaAgentNameLength]byte
	if err := l.hsaDo(l.agentInfo, uintptr(p.Owner.Handle), hsaAgentInfoName, uintptr(unsafe.Pointer(&name[0]))); err != nil {
		return owner, "", err
	}
	return p.Owner, dynlib.Buffer(name[:]), nil
}
