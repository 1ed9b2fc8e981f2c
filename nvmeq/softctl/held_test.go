package softctl

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// replacePages puts other pages in the place of memory: who has pinned the old ones does not see them.
func replacePages(t *testing.T, b []byte) {
	t.Helper()
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	require.NoError(t, err)
}

// severalRuns says whether the kernel takes several runs of registered memory at once: from Linux 6.15 on.
func severalRuns(t *testing.T) bool {
	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	return major > 6 || major == 6 && minor >= 15
}

// pinned is how many KiB of this process the kernel keeps for io_uring and the like.
func pinned(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "VmPin:")
	require.True(t, found)
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(t, err)
	return kib
}

// scattered reads 16 pages into m, mapped at a, in two commands of one run each and one of pages in turned order; it says what is there then.
func (h *host) scattered(q *pair, a uint64) {
	h.t.Helper()
	for i := range uint64(2) {
		p1, p2 := h.prps(a+i<<14, 16<<10)
		h.put(q, rw(opRead, 1, 32*i, 32).prp(p1, p2))
	}
	list, at := h.alloc(4096)
	for i := range 7 { // the last eight pages, from the end
		*(*uint64)(unsafe.Pointer(&list[8*i])) = a + uint64(15-1-i)<<12
	}
	h.put(q, rw(opRead, 1, 64, 64).prp(a+15<<12, at))
	h.ring(q)
	for _, st := range h.collect(q, 3) {
		require.Equal(h.t, success, st)
	}
}

// TestDirectHolds: memory that is used often is registered with the queue's io_uring, for one run of memory and for several, and let go of when it is
// unmapped; what is borrowed, or not ordinary pages, is not. Who holds memory is seen by replacing its pages.
func TestDirectHolds(t *testing.T) {
	dev, file := newLoop(t, testSize)
	want := random(9, make([]byte, 64<<10))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(want, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	turned := bytes.Clone(want)
	for i := range 8 {
		copy(turned[(15-i)<<12:], want[(8+i)<<12:][:4096])
	}
	for _, tc := range []struct {
		name           string
		borrowed, held bool
		broken         bool // a page that nobody may touch is among it
	}{{"pool", false, true, false}, {"borrowed", true, false, false}, {"refused", false, false, true}} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			h := newHostOn(t, dev, Options{Log: textLog(&log)}).enable()
			q := h.queue(1, 16)
			h.needRing()
			m := newMemory(t, 128<<10)
			if tc.broken {
				require.NoError(t, unix.Mprotect(m.b[96<<10:100<<10], unix.PROT_NONE))
			}
			mapping := func() nvme.IOVA {
				a, err := h.c.Map(m, 0, m.Size())
				require.NoError(t, err)
				if tc.borrowed {
					h.c.Borrowed(a)
				}
				return a
			}
			a := mapping()
			before := pinned(t)
			for range 2 * holdAfter {
				h.scattered(q, uint64(a))
				require.True(t, bytes.Equal(turned, m.b[:64<<10]))
				clear(m.b[:64<<10])
				h.used = h.listMark
			}
			d := h.c.sq[1].Load().direct
			held := 0
			for _, u := range d.held {
				if u.held != 0 {
					held++
				}
			}
			require.Equal(t, map[bool]int{true: 1}[tc.held], held)
			if tc.broken {
				require.Contains(t, h.c.Path(), "O_DIRECT by io_uring, memory not registered: io_uring_register")
				require.Equal(t, 1, strings.Count(log.String(), "io_uring does not take memory"))
			} else {
				require.Equal(t, "O_DIRECT by io_uring", h.c.Path())
			}
			replacePages(t, m.b)
			h.scattered(q, uint64(a))
			require.Equal(t, !tc.held, bytes.Equal(turned, m.b[:64<<10]), "the commands found the pages that are there now")
			if tc.held {
				most := 32 << 10 // what goes to one run of memory
				if severalRuns(t) {
					most = 64 << 10
				}
				require.True(t, bytes.Equal(make([]byte, most), m.b[:most]), "one command at least was not of registered memory")
			}
			require.Equal(t, tc.held, pinned(t) > before)
			require.NoError(t, h.c.Unmap(a))
			require.Empty(t, d.held)
			require.Equal(t, before, pinned(t), "the kernel has pages that are not mapped any more")
			a = mapping()
			h.scattered(q, uint64(a))
			require.True(t, bytes.Equal(turned, m.b[:64<<10]), "the mapping before is not held any more")
			require.NoError(t, h.c.Close())
		})
	}
}
