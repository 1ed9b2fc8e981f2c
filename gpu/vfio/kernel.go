package vfio

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// kernel is every system call of this package on VFIO's and IOMMUFD's files, so that a test can stand in for it, or make
// one fail.
type kernel interface {
	access(path string) error
	open(path string) (fd int, err error) // for reading and writing, closed on exec
	close(fd int) error
	// ioctl passes a structure, ioctlValue a number.
	ioctl(fd int, request uintptr, arg unsafe.Pointer) (int, error)
	ioctlValue(fd int, request, arg uintptr) (int, error)
	pread(fd int, b []byte, off int64) (int, error)
	pwrite(fd int, b []byte, off int64) (int, error)
	// mmap maps n bytes of fd from off, readable, writable and shared, at the address given, or where there is room.
	mmap(fd int, off int64, at unsafe.Pointer, n uintptr) (unsafe.Pointer, error)
	// reserve takes n bytes of address space that cannot be accessed.
	reserve(n uintptr) (unsafe.Pointer, error)
	munmap(at unsafe.Pointer, n uintptr) error
	eventfd() (int, error)
	// pageSize is of the CPU's pages, in bytes: a power of two.
	pageSize() int64
}

// machine is the kernel and the PCI functions that it shows.
type machine struct {
	kernel
	pci pci.System
}

var thisMachine = machine{kernel: linux{}}

// linux is the kernel itself.
type linux struct{}

func (linux) pageSize() int64 { return int64(os.Getpagesize()) }

func (linux) access(path string) error { return unix.Access(path, unix.F_OK) }

func (linux) open(path string) (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0) }

func (linux) close(fd int) error { return unix.Close(fd) }

// ioctl carries out one request, again when a signal interrupts it.
func (linux) ioctl(fd int, request uintptr, arg unsafe.Pointer) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (linux) ioctlValue(fd int, request, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

func (linux) pread(fd int, b []byte, off int64) (int, error)  { return unix.Pread(fd, b, off) }
func (linux) pwrite(fd int, b []byte, off int64) (int, error) { return unix.Pwrite(fd, b, off) }

func (linux) mmap(fd int, off int64, at unsafe.Pointer, n uintptr) (unsafe.Pointer, error) {
	flags := unix.MAP_SHARED
	if at != nil {
		flags |= unix.MAP_FIXED
	}
	return unix.MmapPtr(fd, off, at, n, unix.PROT_READ|unix.PROT_WRITE, flags)
}

func (linux) reserve(n uintptr) (unsafe.Pointer, error) {
	return unix.MmapPtr(-1, 0, nil, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

func (linux) munmap(at unsafe.Pointer, n uintptr) error { return unix.MunmapPtr(at, n) }

func (linux) eventfd() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK) }
