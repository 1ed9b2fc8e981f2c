package media

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// judge checks what is on the medium: as the next mount shows it, and after e2fsck has repaired it.
func (b *bench) judge() {
	t := b.t
	if _, err := os.Stat(b.backing); err != nil {
		b.backing += ".away"
	}
	for _, repaired := range []bool{false, true} {
		img := filepath.Join(b.dir, "copy")
		require.NoError(t, sparse.Copy(b.backing, img))
		if repaired {
			// e2fsck ignores the list of orphans on a volume with the error mark, so the mark is cleared first.
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
		b.check(fmt.Sprintf("LaneFS, after e2fsck: %v", repaired))
		out, err := b.lanefs("umount", b.mnt)
		require.NoError(t, err, out)
		if repaired {
			b.tool(0, "e2fsck", "-fn", img)
		}
	}
}

// check requires that what was acknowledged is there at mnt, mounted by the named driver.
func (b *bench) check(by string) {
	b.t.Helper()
	for _, w := range b.writers {
		require.NoError(b.t, w.check(w, filepath.Join(b.mnt, w.name)), "%s, by %s", w.name, by)
	}
}

// kernel checks a mount by the kernel's ext4, if it can mount here.
func (b *bench) kernel(img string) {
	if os.Geteuid() != 0 {
		b.t.Log("not mounted by the kernel's ext4: that needs root")
		return
	}
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,ro", img, b.mnt).CombinedOutput(); err != nil {
		b.t.Logf("not mounted by the kernel's ext4: %s", out)
		return
	}
	defer b.tool(0, "umount", b.mnt)
	b.check("the kernel")
}

// judgeTorn checks an image of which a part is lost: as long as it is too short, a mount is refused.
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
	b.t.Logf("e2fsck -fn: exit status %d:\n%.500s", c.ProcessState.ExitCode(), out)
}
