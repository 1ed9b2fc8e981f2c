package media

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pages of a file on a tmpfs are of 4 KiB, unless it is mounted with huge=. A copy engine that reads them through an IOMMU loses up to an eighth of the bus to
// their translation (docs/PERFORMANCE.md). Before such pages are pinned the kernel is asked to
// make huge ones of them: madvise(2), MADV_COLLAPSE, Linux 6.1. Where it does not, because the file is of another file system, because
// memory is fragmented, or because somebody else holds a page, they stay as they are.

// hugePage is the size of a huge page in bytes, 0 where there is none.
var hugePage = sync.OnceValue(func() int64 {
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

// mapFile maps n bytes of the image from off on for reading, both whole pages, at an address where the processor can use the file's huge pages.
func (m *Image) mapFile(off, n int64) ([]byte, error) {
	huge := hugePage()
	if huge == 0 || n < huge {
		at, err := unix.MmapPtr(m.fd, off, nil, uintptr(n), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return unsafe.Slice((*byte)(at), n), nil
	}
	room, err := unix.MmapPtr(-1, 0, nil, uintptr(n+huge), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := (off - int64(uintptr(room))) & (huge - 1)
	at, err := unix.MmapPtr(m.fd, off, unsafe.Add(room, before), uintptr(n), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(room, uintptr(n+huge))
		return nil, err
	}
	if before > 0 {
		_ = unix.MunmapPtr(room, uintptr(before))
	}
	_ = unix.MunmapPtr(unsafe.Add(at, n), uintptr(huge-before))
	return unsafe.Slice((*byte)(at), n), nil
}

// collapseTries: EAGAIN says that some page was just then in other hands, another CPU's list of pages that are new in the cache, or a reader's. What is huge
// already costs the next try nothing.
const collapseTries = 4

// collapse has the kernel make huge pages of what b maps of the image from off on, which has no holes: those it would fill. Nothing is done where b is more
// than a quarter of the memory that the process may have yet.
func collapse(b []byte, off int64) {
	huge := hugePage()
	if huge == 0 || MemoryRoom()/4 < int64(len(b)) {
		return
	}
	from, to := -off&(huge-1), int64(len(b))-(off+int64(len(b)))&(huge-1)
	if from < to {
		for range collapseTries {
			if unix.Madvise(b[from:to], unix.MADV_COLLAPSE) != unix.EAGAIN {
				return
			}
		}
	}
}
