package media

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

// judge looks at what is on the medium: as the next mount shows it, and after e2fsck has brought it in order.
func (b *bench) judge() {
	t := b.t
	if _, err := os.Stat(b.backing); err != nil {
		b.backing += ".away"
	}
	for _, repaired := range []bool{false, true} {
		img := filepath.Join(b.dir, "copy")
		b.tool(0, "cp", "--sparse=always", b.backing, img)
		if repaired {
			// e2fsck trusts no list of orphans on a volume that has met errors; the mark is taken away first, to see the rest.
			b.tool(1, "e2fsck", "-fy", "-E", "journal_only", img)
			b.tool(0, "debugfs", "-w", "-R", "set_super_value state 1", img)
			out := b.tool(1, "e2fsck", "-fy", img)
			t.Logf("e2fsck -fy:\n%s", out)
			for _, what := range []string{"? yes", "Clone multiply-claimed", "Free blocks count wrong", "Inode bitmap differences", "Unattached"} {
				require.NotContains(t, out, what, "more than a power cut leaves")
			}
			b.tool(0, "e2fsck", "-fn", img)
			b.kernel(img)
		}
		b.serve(img, "commit=5")
		b.check(fmt.Sprintf("LaneFS, e2fsck has looked: %v", repaired))
		out, err := b.lanefs("umount", b.mnt)
		require.NoError(t, err, out)
		if repaired {
			b.tool(0, "e2fsck", "-fn", img)
		}
	}
}

// check wants what was acknowledged at mnt.
func (b *bench) check(who string) {
	b.t.Helper()
	for _, w := range b.writers {
		require.NoError(b.t, w.check(w, filepath.Join(b.mnt, w.name)), "%s, by %s", w.name, who)
	}
}

// kernel has the kernel's ext4 show what is there, where it may.
func (b *bench) kernel(img string) {
	if os.Geteuid() != 0 {
		b.t.Log("the kernel's ext4 was not asked: that needs root")
		return
	}
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,ro", img, b.mnt).CombinedOutput(); err != nil {
		b.t.Logf("the kernel's ext4 was not asked: %s", out)
		return
	}
	defer b.tool(0, "umount", b.mnt)
	b.check("the kernel")
}

// judgeTorn: what is gone is gone. A mount is refused as long as the image is too short, or says that e2fsck has to look.
func (b *bench) judgeTorn() {
	st, err := os.Stat(b.backing)
	require.NoError(b.t, err)
	if st.Size() < imageSize {
		require.EqualValues(b.t, imageSize/2, st.Size(), "it grew")
		out, err := b.lanefs("mount", "--gpu", "host", b.backing, b.mnt)
		require.Error(b.t, err)
		require.Contains(b.t, out, "is truncated")
		return
	}
	c := exec.Command("e2fsck", "-fn", b.backing)
	out, _ := c.CombinedOutput()
	b.t.Logf("e2fsck -fn says %d:\n%.500s", c.ProcessState.ExitCode(), out)
}
