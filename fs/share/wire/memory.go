package wire

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/memfd"
)

// Slots is the number of words of a notice board. A connection can have one handle less at once, since 0 is not a handle.
const Slots = 8192

// Unknown is stored on the notice board for mappings that the daemon no longer tracks.
const Unknown = ^uint64(0)

// Shared is memory that two processes share: a notice board or rings. Each process closes its own mapping.
type Shared struct {
	b []byte
	// FD is the memfd; -1 if the other process made it.
	FD int
}

// NewShared makes shared memory of n bytes, sealed against changes of its size. With readOnly other processes cannot write to it.
func NewShared(name string, n int, readOnly bool) (*Shared, error) {
	fd, err := memfd.New(name)
	if err != nil {
		return nil, err
	}
	s := &Shared{FD: fd}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		s.b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
		if readOnly {
			seals |= unix.F_SEAL_FUTURE_WRITE
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%d bytes of shared memory: %w", n, err)
	}
	return s, nil
}

// MapShared maps n bytes of memory that the other process made. The caller still has to close the descriptor.
func MapShared(fd, n int, write bool) (*Shared, error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, 0, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of the daemon's memory: %w", n, err)
	}
	return &Shared{b: b, FD: -1}, nil
}

// Word returns the 64-bit word at off, a multiple of 8.
func (s *Shared) Word(off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.b[off : off+8 : off+8][0]))
}

// Word32 returns the 32-bit word at off, a multiple of 4.
func (s *Shared) Word32(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&s.b[off : off+4 : off+4][0]))
}

// Bytes returns the memory.
func (s *Shared) Bytes() []byte { return s.b }

// Forget gives the memory back, as if it was closed, but that it may still be written to: what is written goes nowhere. It returns false, and has done nothing, if the system
// has no memory for that.
func (s *Shared) Forget() bool {
	at := unsafe.Pointer(unsafe.SliceData(s.b))
	if _, err := unix.MmapPtr(-1, 0, at, uintptr(len(s.b)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED|unix.MAP_NORESERVE); err != nil {
		return false
	}
	CloseAll([]int{s.FD})
	s.FD = -1
	return true
}

// Close unmaps the memory and closes FD.
func (s *Shared) Close() {
	if s.b != nil {
		_ = unix.Munmap(s.b)
		s.b = nil
	}
	CloseAll([]int{s.FD})
	s.FD = -1
}
