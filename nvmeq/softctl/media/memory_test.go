package media

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMemory holds which cgroups count: those of the process and all around them, of both versions.
func TestMemory(t *testing.T) {
	root := t.TempDir()
	write := func(path, what string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(what+"\n"), 0o644))
	}
	of := func(list string) int64 {
		write("list", list)
		return room(filepath.Join(root, "list"), root)
	}
	most := func(list string) int64 {
		write("list", list)
		return limit(filepath.Join(root, "list"), root)
	}
	const all = int64(math.MaxInt64)
	require.Zero(t, room(filepath.Join(root, "none"), root))
	require.Zero(t, of("nothing"))
	require.Equal(t, all, most("nothing"))
	require.Equal(t, all, limit(filepath.Join(root, "none"), root))
	require.Equal(t, all, of("0::/"), "the root has no limit")
	write("a/memory.max", "max")
	write("a/b/memory.max", "1000")
	write("a/b/memory.current", "10")
	write("a/b/c/memory.max", "500")
	write("a/b/c/memory.current", "6")
	require.Equal(t, all, of("0::/a"))
	require.EqualValues(t, 990, of("0::/a/b"))
	require.EqualValues(t, 494, of("0::/a/b/c"))
	require.EqualValues(t, 494, of("0::/a/b/c/d/e"), "the groups around count; one that is not seen has none")
	require.EqualValues(t, 500, most("0::/a/b/c/d/e"), "what is in use has no part in it")
	require.EqualValues(t, 1000, most("0::/a/b"))
	require.Equal(t, all, most("0::/a"))
	write("a/b/memory.high", "max")
	write("a/memory.high", "400")
	require.EqualValues(t, 400, most("0::/a/b/c"))
	write("a/b/memory.current", "900")
	require.EqualValues(t, 100, of("0::/a/b/c"))
	write("a/b/memory.current", "?")
	require.Zero(t, of("0::/a/b/c"))
	write("memory/x/memory.limit_in_bytes", "9223372036854771712")
	require.Equal(t, all, of("4:cpu,memory:/x\n0::/a/b/c"), "version 1 has the memory")
	write("memory/memory.limit_in_bytes", "104857600")
	write("memory/memory.usage_in_bytes", "104857599")
	require.EqualValues(t, 1, of("4:cpu,memory:/x\n0::/a"))
	require.EqualValues(t, 104857600, most("4:cpu,memory:/x\n0::/a"))
	require.LessOrEqual(t, MemoryLimit(), limit("/proc/self/cgroup", "/sys/fs/cgroup"))
	require.Less(t, MemoryLimit(), all, "the machine's memory")
}
