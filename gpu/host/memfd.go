package host

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/memfd"
)

// newMemFD makes a memfd of size bytes that can be sealed.
func newMemFD(name string, size int64) (int, error) {
	fd, err := memfd.New(name)
	if err != nil {
		return -1, fmt.Errorf("host runtime: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("host runtime: a memfd of %d bytes: %w", size, err)
	}
	return fd, nil
}

// mapNew maps length bytes where there is room. Unlike unix.Mmap it keeps no record of its own of what is mapped.
func mapNew(length int64, prot, flags, fd int, offset int64) ([]byte, error) {
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(length), prot, flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), length), nil
}

// mapAt maps length bytes of fd at addr, replacing what is mapped there.
func mapAt(addr unsafe.Pointer, length int64, fd int, offset int64) error {
	_, err := unix.MmapPtr(fd, offset, addr, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// unmap takes b, which mapNew returned, out of the address space.
func unmap(b []byte) {
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))); err != nil {
		panic(fmt.Sprintf("host runtime: unmap %d bytes: %v", len(b), err)) // only wrong arguments make it fail
	}
}
