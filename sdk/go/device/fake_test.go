package device_test

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// fake is the stand-in for NVIDIA's driver (lab/cuda), as a program calls it. The device's primary context is the thread's that has opened it.
type fake struct {
	functions map[string]uintptr
	context   uintptr
	page      []byte  // memory that no GPU knows; its first words are gates
	memory    uintptr // its address
	gates     int
}

func openFake() (*fake, error) {
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	d := &fake{functions: map[string]uintptr{}}
	for _, name := range []string{"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize",
		"cuStreamWaitValue64_v2", "cuMemsetD8Async", "cuMemcpyDtoDAsync_v2", "fake_cuda_fail"} {
		if d.functions[name], err = purego.Dlsym(lib, name); err != nil {
			return nil, err
		}
	}
	if d.page, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	d.memory = uintptr(unsafe.Pointer(unsafe.SliceData(d.page)))
	if err := d.do("cuInit", 0); err != nil {
		return nil, err
	}
	context := new(uintptr)
	if err := d.do("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(context)), 0); err != nil {
		return nil, err
	}
	d.context = *context
	return d, d.enter()
}

// do calls the driver.
//
//go:uintptrescapes
func (d *fake) do(name string, args ...uintptr) error {
	if code, _, _ := purego.SyscallN(d.functions[name], args...); int32(code) != 0 {
		return fmt.Errorf("%s: error %d", name, int32(code))
	}
	return nil
}

// enter makes the context the thread's.
func (d *fake) enter() error { return d.do("cuCtxSetCurrent", d.context) }

// alloc gives the address of memory of the device's, and the memory as the stand-in has it.
func (d *fake) alloc(n int64) (uintptr, []byte, error) {
	at := new(uintptr)
	if err := d.do("cuMemAlloc_v2", uintptr(unsafe.Pointer(at)), uintptr(n)); err != nil {
		return 0, nil, err
	}
	return *at, unsafe.Slice(*(**byte)(unsafe.Pointer(at)), n), nil
}

func (d *fake) newStream() (uintptr, error) {
	s := new(uintptr)
	const nonBlocking = 1
	err := d.do("cuStreamCreate", uintptr(unsafe.Pointer(s)), nonBlocking)
	return *s, err
}

func (d *fake) endStream(s uintptr) error { return d.do("cuStreamDestroy_v2", s) }
func (d *fake) sync(s uintptr) error      { return d.do("cuStreamSynchronize", s) }

func (d *fake) fill(at uintptr, with byte, n int64, s uintptr) error {
	return d.do("cuMemsetD8Async", at, uintptr(with), uintptr(n), s)
}

func (d *fake) copy(to, from uintptr, n int64, s uintptr) error {
	return d.do("cuMemcpyDtoDAsync_v2", to, from, uintptr(n), s)
}

// gate is a word for wait; open has it let streams pass.
func (d *fake) gate() (gate uintptr, open func()) {
	at := (*uint64)(unsafe.Pointer(&d.page[8*d.gates]))
	d.gates++
	return uintptr(unsafe.Pointer(at)), func() { atomic.StoreUint64(at, 1) }
}

// wait has the stream stop until the gate opens.
func (d *fake) wait(gate, s uintptr) error { return d.do("cuStreamWaitValue64_v2", s, gate, 1, 0) }

// fail has the next call of a function fail.
func (d *fake) fail(name string, code uintptr) {
	c := append([]byte(name), 0)
	purego.SyscallN(d.functions["fake_cuda_fail"], uintptr(unsafe.Pointer(&c[0])), code)
}
