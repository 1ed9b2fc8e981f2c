package lab

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const many = "0000:00:06.0"

// TestControllers goes through QEMU's controller as it can be configured.
func TestControllers(t *testing.T) {
	type variant struct {
		name    string
		options map[string]any
		mkfs    []string
		mount   []string
	}
	variants := []variant{
		{"LBA 4096", map[string]any{"logical_block_size": 4096, "physical_block_size": 4096}, nil, nil},
		{"one queue pair", map[string]any{"max_ioqpairs": 1, "msix_qsize": 2}, nil, nil},
		{"small queues", nil, nil, []string{"-o", "depth=1,lanes=1"}},
		{"many lanes", nil, nil, []string{"-o", "lanes=16,depth=31"}},
		{"CMB", map[string]any{"cmb_size_mb": 16}, nil, nil},
		{"blocks of 1 KiB", nil, []string{"-b", "1024"}, nil},
	}
	for mdts := 1; mdts <= 7; mdts++ {
		variants = append(variants, variant{fmt.Sprintf("MDTS %d", mdts), map[string]any{"mdts": mdts}, nil, nil})
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			addr := plug(t, medium(t, 7), v.options)
			roundTrip(t, addr, v.mkfs, v.mount...)
		})
	}
}

// Namespaces beside one another: those that can be used are, the others are refused by name.
func TestNamespaces(t *testing.T) {
	disk(t, many)
	mkfs(t, disk(t, many))
	bound(t, many)
	out := lanefs(t, "identify", many)
	require.Contains(t, out, "1048576 blocks of 512 bytes")
	require.Contains(t, out, "131072 blocks of 4096 bytes")
	require.Contains(t, refused(t, "mount", "-o", "nsid=3", many, t.TempDir()), "oned")
	require.Contains(t, refused(t, "mount", "-o", "nsid=4", many, t.TempDir()), "metadata")
	require.Contains(t, refused(t, "mount", "-o", "nsid=5", many, t.TempDir()), "5")
	require.Contains(t, refused(t, "mount", "-o", "nsid=2", many, t.TempDir()), "ext4", "there is none on it")
	dir := mount(t, many, "-o", "nsid=1")
	fill(t, dir, 1)
	before := tree(t, dir)
	lanefs(t, "umount", dir)
	dir = mount(t, many, "-o", "nsid=1")
	require.Equal(t, before, tree(t, dir))
	lanefs(t, "umount", dir)
}
