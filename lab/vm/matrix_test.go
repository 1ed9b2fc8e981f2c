package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const many = "0000:00:06.0"

// setting is one way to configure something: QEMU's controller, the volume, or the mount.
type setting struct {
	name       string
	controller map[string]any
	mkfs       []string
	mount      []string
}

// settings are the properties that vary, each with its values.
var settings = [][]setting{
	{
		{name: "LBA 512"},
		{name: "LBA 512 and blocks of 1 KiB", mkfs: []string{"-b", "1024"}},
		{name: "LBA 4096", controller: map[string]any{"logical_block_size": 4096, "physical_block_size": 4096}},
	},
	{
		{name: "many queue pairs"},
		{name: "one queue pair", controller: map[string]any{"max_ioqpairs": 1, "msix_qsize": 2}},
	},
	{
		{name: "usual queues"},
		{name: "one small queue", mount: []string{"-o", "depth=1,lanes=1"}},
		{name: "many lanes", mount: []string{"-o", "lanes=16,depth=31"}},
	},
	{
		{name: "no CMB"},
		{name: "CMB", controller: map[string]any{"cmb_size_mb": 16}},
	},
}

// transferLimits are the controller's MDTS, in powers of two of its page.
var transferLimits = []int{1, 2, 3, 4, 5, 6, 7}

// full reports whether LANEFS_LAB_FULL=1 was given to `make lab`.
func full() bool { return os.Getenv("LANEFS_LAB_FULL") == "1" }

// mine reports whether the kth of several tests is this kernel's: `make lab` runs them on two kernels, which share what is the same work
// on both, the one with IOMMUFD taking the even ones. With LANEFS_LAB_FULL=1, or one kernel alone, all are.
func mine(k int) bool {
	if full() || os.Getenv("LANEFS_LAB_SHARED") != "1" {
		return true
	}
	_, err := os.Stat("/dev/iommu")
	return (k%2 == 0) == (err == nil)
}

// skipOthers skips a test that is the kth of those that two kernels share, where it is the other's.
func skipOthers(t *testing.T, k int) {
	t.Helper()
	if !mine(k) {
		t.Skip("the other kernel runs it, this one with LANEFS_LAB_FULL=1")
	}
}

// pairwise returns few combinations of one value of each setting, such that any two values of different settings occur
// together in one of them.
func pairwise(ways []int) (few [][]int) {
	all := [][]int{{}}
	for _, n := range ways {
		var longer [][]int
		for _, c := range all {
			for w := range n {
				longer = append(longer, append(append([]int(nil), c...), w))
			}
		}
		all = longer
	}
	type pair struct{ i, wi, j, wj int }
	pairs := func(c []int) (p []pair) {
		for i := range c {
			for j := i + 1; j < len(c); j++ {
				p = append(p, pair{i, c[i], j, c[j]})
			}
		}
		return p
	}
	missing := map[pair]bool{}
	for _, c := range all {
		for _, p := range pairs(c) {
			missing[p] = true
		}
	}
	for len(missing) > 0 { // the one in which most of what is missing meets, then the next
		var best []int
		most := 0
		for _, c := range all {
			n := 0
			for _, p := range pairs(c) {
				if missing[p] {
					n++
				}
			}
			if n > most {
				best, most = c, n
			}
		}
		few = append(few, best)
		for _, p := range pairs(best) {
			delete(missing, p)
		}
	}
	return few
}

// TestControllers tests configurations of QEMU's controller: any two values of different settings occur in one of few
// controllers, and each transfer limit in one, on one kernel or the other; with LANEFS_LAB_FULL=1 each limit occurs with each value of
// every setting, on both.
func TestControllers(t *testing.T) {
	onPC(t, "the kernel's own driver refuses these controllers there, when they are plugged in (EINVAL); why was not looked into")
	var ways []int
	for _, s := range settings {
		ways = append(ways, len(s))
	}
	if full() {
		ways = append(ways, len(transferLimits))
	}
	choices := pairwise(ways)
	for k := 0; k < max(len(choices), len(transferLimits)); k++ {
		if !mine(k) {
			continue
		}
		choice := choices[k%len(choices)]
		limit := transferLimits[k%len(transferLimits)]
		if full() {
			limit = transferLimits[choice[len(settings)]]
		}
		options := map[string]any{"mdts": limit}
		names := []string{fmt.Sprintf("MDTS %d", limit)}
		var mkfs, mount []string
		for i, ways := range settings {
			s := ways[choice[i]]
			names = append(names, s.name)
			for k, v := range s.controller {
				options[k] = v
			}
			mkfs, mount = append(mkfs, s.mkfs...), append(mount, s.mount...)
		}
		t.Run(strings.Join(names, " + "), func(t *testing.T) {
			roundTrip(t, plug(t, medium(t, 7), options), mkfs, mount...)
		})
	}
}

// Any two values occur together, and there are not many more combinations than necessary.
func TestPairwise(t *testing.T) {
	ways := []int{3, 2, 3, 2, 7}
	few := pairwise(ways)
	require.LessOrEqual(t, len(few), 24, "21 are the least")
	for i := range ways {
		for j := i + 1; j < len(ways); j++ {
			met := map[[2]int]bool{}
			for _, c := range few {
				met[[2]int{c[i], c[j]}] = true
			}
			require.Len(t, met, ways[i]*ways[j])
		}
	}
}

// Several namespaces of a controller: each that is supported is used on its own; the others are refused by name.
func TestNamespaces(t *testing.T) {
	mountable := []int{1, 2} // of blocks of 512 and 4096 bytes
	trees := map[int]map[string]string{}
	device := func(nsid int) string { return blockDevice(t, many, nsid) }
	for _, nsid := range mountable {
		mkfs(t, device(nsid))
	}
	t.Run("lanefs", func(t *testing.T) {
		bound(t, many)
		out := lanefs(t, "identify", many)
		require.Contains(t, out, "1048576 blocks of 512 bytes")
		require.Contains(t, out, "131072 blocks of 4096 bytes")
		for nsid, why := range map[int]string{
			3: "namespace 3: the namespace uses the Zoned Namespace command set; only NVM is supported",
			4: "namespace 4: the namespace has 8 bytes of metadata per block, which is not supported",
			5: "no active namespace 5; it has [1 2 3 4]",
		} {
			for _, args := range [][]string{{"mount", "-o", fmt.Sprintf("nsid=%d", nsid), many, t.TempDir()}, {"raw", fmt.Sprintf("%s/%d", many, nsid), filepath.Join(t.TempDir(), "raw")}} {
				require.Contains(t, refused(t, args...), why)
			}
		}
		for _, nsid := range mountable {
			dir := mount(t, many, "-o", fmt.Sprintf("nsid=%d", nsid))
			fill(t, dir, uint64(nsid))
			trees[nsid] = tree(t, dir)
			lanefs(t, "umount", dir)
		}
	})
	for _, nsid := range mountable {
		fsck(t, device(nsid))
		kernelMount(t, device(nsid), func(dir string) { require.Equal(t, trees[nsid], tree(t, dir), "namespace %d", nsid) })
	}
}
