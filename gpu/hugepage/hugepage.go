// Package hugepage maps memory in huge pages where the kernel has them: ordinary pages, and files in memory, as memfds and files of a tmpfs are. Pages of such a file are of 4 KiB, unless the machine is
// set up otherwise: each takes a page fault, and a pin where it is pinned, and a copy engine that reads them through an IOMMU loses up to an eighth of the bus to their translation
// (docs/PERFORMANCE.md). The kernel makes huge ones when it is asked: madvise(2), MADV_COLLAPSE, Linux 6.1. Where it does not, because the file is of another file
// system, because memory is fragmented, or because somebody else holds a page, they stay as they are.
package hugepage

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Size is the size of a huge page in bytes, 0 where there is none.
var Size = sync.OnceValue(func() int64 {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if err != nil {
		return 0
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || size&(size-1) != 0 {
		return 0
	}
	return size
})

// least is what mappings of that size and more are aligned to, in bytes: a huge page of x86-64, and of arm64 with pages of 4 KiB. With pages of 64 KiB it is as many as one entry of the
// processor's tables has.
const least = 2 << 20

// Reserve takes n bytes of address space, whole pages, where the processor can use the huge pages of a file that is mapped there from off on. By itself Linux aligns so what is a multiple of a
// huge page, since 6.7. It is unmapped by its address and length (munmap(2)), as what Map and New return.
func Reserve(off, n int64) ([]byte, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	huge := Size()
	if n < huge || huge < least {
		huge = least // with pages of 64 KiB a huge one has 512 MiB
	}
	if n < huge {
		huge = 0
	}
	room, err := unix.MmapPtr(-1, 0, nil, uintptr(n+huge), unix.PROT_NONE, flags)
	if err != nil || huge == 0 {
		return unsafe.Slice((*byte)(room), n), err
	}
	before := (off - int64(uintptr(room))) & (huge - 1)
	at := unsafe.Add(room, before)
	if before > 0 {
		err = unix.MunmapPtr(room, uintptr(before))
	}
	if err = errors.Join(err, unix.MunmapPtr(unsafe.Add(at, n), uintptr(huge-before))); err != nil {
		return nil, err // what is left costs address space only
	}
	return unsafe.Slice((*byte)(at), n), nil
}

// Map maps n bytes of a file from off on, both whole pages, shared, at such an address.
func Map(fd int, off, n int64, prot int) ([]byte, error) {
	return over(fd, off, n, prot, unix.MAP_SHARED)
}

// New maps n bytes of new pages, whole ones. What can hold huge pages begins at one, and asks for them before any page is there: a huge page is one entry in the tables of the IOMMU and the
// GPU, too. Where the system gives none it does not matter.
func New(n int64) ([]byte, error) {
	b, err := over(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil && n >= least {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	return b, err
}

// over maps something over a reservation.
func over(fd int, off, n int64, prot, flags int) ([]byte, error) {
	b, err := Reserve(off, n)
	if err != nil {
		return nil, err
	}
	at := unsafe.Pointer(unsafe.SliceData(b))
	if _, err := unix.MmapPtr(fd, off, at, uintptr(n), prot, flags|unix.MAP_FIXED); err != nil {
		_ = unix.MunmapPtr(at, uintptr(n))
		return nil, err
	}
	return b, nil
}

// tries: EAGAIN says that some page was just then in other hands, another CPU's list of pages that are new in the cache, or a reader's. What is huge
// already costs the next try nothing.
const tries = 4

// Collapse has the kernel make huge pages of what b maps of a file from off on. Holes of a huge page that has a page become zeros.
func Collapse(b []byte, off int64) {
	from, to := within(b, off)
	if from < to {
		for range tries {
			if unix.Madvise(b[from:to], unix.MADV_COLLAPSE) != unix.EAGAIN {
				return
			}
		}
	}
}

// Populate is Collapse for memory that is to be filled, and may have no page yet. It writes a zero to each huge page. Some CPUs do it together, for most of the time
// it takes is to clear pages.
func Populate(b []byte, off int64) {
	from, to := within(b, off)
	if from >= to {
		return
	}
	pages := (to - from) / Size()
	parts := min(pages, most, int64(runtime.NumCPU()))
	var wg sync.WaitGroup
	for k := range parts {
		wg.Go(func() {
			from, to := from+k*pages/parts*Size(), from+(k+1)*pages/parts*Size()
			for i := from; i < to; i += Size() {
				b[i] = 0
			}
			Collapse(b[from:to], off+from)
		})
	}
	wg.Wait()
}

// most is how many CPUs Populate uses.
const most = 4

// within says where the whole huge pages are in b, which maps a file from off on. There is none if to is not more than from.
func within(b []byte, off int64) (from, to int64) {
	huge := Size()
	if huge == 0 {
		return 0, 0
	}
	n := int64(len(b))
	return -off & (huge - 1), n - (off+n)&(huge-1)
}
