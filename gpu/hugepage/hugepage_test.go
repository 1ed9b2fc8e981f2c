package hugepage

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/gputest/smaps"
	"github.com/lanefs/lanefs/gpu/memfd"
)

// mapped maps a new memfd of size bytes from off on.
func mapped(t *testing.T, size, off int64) []byte {
	t.Helper()
	fd, err := memfd.New("hugepage")
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, size))
	b, err := Map(fd, off, size-off, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))) })
	return b
}

// TestPopulate: whole huge pages become such, with their bytes as they were; what is before and after them is left alone.
func TestPopulate(t *testing.T) {
	huge := Size()
	if huge == 0 {
		t.Skip("SKIPPED: no huge pages")
	}
	page := int64(os.Getpagesize())
	for _, off := range []int64{0, page, huge - page, 3 * page} {
		b := mapped(t, 4*huge+2*page, off)
		require.Zero(t, (int64(uintptr(unsafe.Pointer(&b[0])))-off)%huge, "the file's huge pages are the processor's")
		Populate(b, off)
		whole := int64(3) * huge
		if off == 0 {
			whole += huge
		}
		at := smaps.At(t, uintptr(unsafe.Pointer(&b[0])))
		require.Equal(t, uintptr(unsafe.Pointer(&b[0])), at.From, "a mapping of its own")
		n := at.Huge(t)
		if n == 0 {
			t.Skip("SKIPPED: this kernel makes no huge pages of a memfd")
		}
		require.Equal(t, whole, n)
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d of new memory is %d", i, b[i])
			}
		}
		b[huge] = 7
		Collapse(b, off)
		require.Equal(t, byte(7), b[huge])
	}
}

// TestSmall: less than a huge page is mapped, too, and nothing is done to it.
func TestSmall(t *testing.T) {
	b := mapped(t, int64(os.Getpagesize()), 0)
	Populate(b, 0)
	Collapse(b, 0)
	b[0] = 1
}

// TestNew: what can hold huge pages begins at one and asks for them, and nothing beside it stays mapped.
func TestNew(t *testing.T) {
	for _, n := range []int64{4096, least, 3*least + 4096} {
		b, err := New(n)
		require.NoError(t, err)
		if at := uintptr(unsafe.Pointer(&b[0])); n >= least {
			require.Zero(t, at%least, "%d bytes", n)
			require.Contains(t, smaps.At(t, at).Flags(), "hg", "%d bytes", n)
		}
		b[0], b[n-1] = 1, 2
		require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(n)))
	}
	const rounds = 512
	before := space(t)
	for range rounds {
		b, err := New(least)
		require.NoError(t, err)
		require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&b[0]), least))
	}
	require.Less(t, space(t), before+rounds*least/2)
}

// space is how many bytes of address space the process has.
func space(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &n)
	require.NoError(t, err)
	return n * int64(os.Getpagesize())
}
