package rocm_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
)

// Pinned memory of the pool's size can consist of huge pages: it begins at one, and asks for them.
func TestHugePages(t *testing.T) {
	rt := device(t)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	for _, n := range []int64{2 << 20, 6<<20 + 4096} {
		m, err := rt.Alloc(gpu.HostPinned, n)
		require.NoError(t, err)
		at := uintptr(unsafe.Pointer(&m.Host()[0]))
		require.Zero(t, at%(2<<20))
		require.Contains(t, strings.Fields(flagsAt(t, at)), "hg")
		require.NoError(t, m.Close())
	}
}

// flagsAt is what the kernel says of the mapping at an address.
func flagsAt(t *testing.T, addr uintptr) string {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	inside := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if flags, ok := strings.CutPrefix(s.Text(), "VmFlags:"); ok && inside {
			return flags
		}
	}
	t.Fatalf("nothing is mapped at %#x", addr)
	return ""
}
