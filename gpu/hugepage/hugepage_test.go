package hugepage

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// hugeAt is how many bytes of what is mapped at b the processor reaches by huge pages.
func hugeAt(t *testing.T, b []byte) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n"+strconv.FormatUint(uint64(uintptr(unsafe.Pointer(&b[0]))), 16)+"-")
	require.True(t, found, "a mapping of its own begins there")
	_, rest, _ = strings.Cut(rest, "ShmemPmdMapped:")
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kb << 10
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
		n := hugeAt(t, b)
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
