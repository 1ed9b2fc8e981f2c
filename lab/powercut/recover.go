package powercut

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// This file has the ways to bring a cut volume back. Each gives the tree that it shows.

// ours recovers with LaneFS, walks, and unmounts; e2fsck must then find nothing wrong. rec, if not nil, records it.
func ours(image string, l *Layout, rec *softctl.Recorder) (*Tree, error) {
	t, err := look(image, stackOptions{lba: l.LBA, discard: l.Discard, recorder: rec})
	if err != nil {
		return nil, fmt.Errorf("LaneFS's recovery: %w", err)
	}
	if err := fsckClean(image); err != nil {
		return nil, fmt.Errorf("after LaneFS's recovery: %w", err)
	}
	return t, nil
}

// readOnly is LaneFS's read-only look. The image is opened so that it cannot be written.
func readOnly(image string, l *Layout) (*Tree, error) {
	t, err := look(image, stackOptions{lba: l.LBA, readOnly: true})
	if err != nil {
		return nil, fmt.Errorf("LaneFS, read-only: %w", err)
	}
	return t, nil
}

func look(image string, o stackOptions) (*Tree, error) {
	var said strings.Builder
	o.logf = func(format string, args ...any) { fmt.Fprintf(&said, "\n    "+format, args...) }
	s, err := openStack(image, o)
	if err != nil {
		return nil, fmt.Errorf("mount: %w%s", err, said.String())
	}
	t, err := walk(s.vol)
	if err == nil && !o.readOnly && s.vol.ReadOnly() {
		err = errors.New("the volume turned read-only")
	}
	if err = errors.Join(err, s.close()); err != nil {
		return nil, fmt.Errorf("%w%s", err, said.String())
	}
	return t, nil
}

// fsckClean demands that e2fsck -fn finds nothing wrong.
func fsckClean(image string) error {
	_, err := tool("e2fsck", "-fn", image)
	return err
}

// fsckRepair recovers with e2fsck -fy. It may replay the journal and finish orphans; what else it says it repaired was
// damage. The volume is then looked at without writing. cut are the inodes whose truncation it finished.
func fsckRepair(image string, l *Layout) (t *Tree, cut []uint64, err error) {
	out, err := tool("e2fsck", "-fy", image)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return nil, nil, fmt.Errorf("e2fsck's recovery: %w", err)
	}
	rest := ordinary.ReplaceAllString(out, "")
	for _, m := range truncating.FindAllStringSubmatch(out, -1) {
		ino, _ := strconv.ParseUint(m[1], 10, 32)
		cut = append(cut, ino)
		rest = regexp.MustCompile(`Inode `+m[1]+`, i_blocks is \d+, should be \d+\.  Fix\? yes\n`).ReplaceAllString(rest, "")
	}
	if l.Miscounts {
		rest = miscount.ReplaceAllString(rest, "")
	}
	if strings.Contains(rest, "? yes") {
		return nil, nil, fmt.Errorf("e2fsck found damage:\n%s", out)
	}
	if err := fsckClean(image); err != nil {
		return nil, nil, fmt.Errorf("after e2fsck's recovery: %w", err)
	}
	if t, err = readOnly(image, l); err != nil {
		return nil, nil, fmt.Errorf("after e2fsck's recovery: %w", err)
	}
	return t, cut, nil
}

// truncating is what e2fsck says when it finishes a truncation. e2fsck 1.47 then drops the inode's attribute block as if the
// inode were deleted, does not count it in i_blocks, and finds that miscount itself in the same run: the attributes are lost.
var truncating = regexp.MustCompile(`Truncating orphaned inode (\d+) `)

// miscount is what e2fsck says of a wrong i_blocks. On volumes with inline data it has said so, once in 32,000 cuts, of an
// inode that neither LaneFS's recovery of the same medium leaves wrong, nor the kernel's: both are looked at by e2fsck -fn.
var miscount = regexp.MustCompile(`Inode \d+, i_blocks is \d+, should be \d+\.  Fix\? yes\n`)

// forgive gives the inodes that e2fsck truncated back the attributes that it dropped.
func (t *Tree) forgive(want *Tree, cut []uint64) {
	for _, ino := range cut {
		if n, w := t.Nodes[ino], want.Nodes[ino]; n != nil && w != nil && len(n.Xattrs) < len(w.Xattrs) {
			n.Xattrs = w.Xattrs
		}
	}
}

// ordinary is what e2fsck also finds to repair where the kernel's power was cut: the orphan file's feature is set as long
// as a volume is mounted, and e2fsck finishes orphans before it clears the file; and extent trees could be narrower.
var ordinary = regexp.MustCompile(`(Feature orphan_present is set but orphan file is clean|Orphan file \(inode \d+\) block \d+ is not clean)\.\nClear\? yes\n|.* Optimize\? yes\n`)

// kernel recovers with the kernel's ext4 over a loop device, mounted at dir.
func kernel(image, dir string) (*Tree, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if _, err := tool("mount", "-t", "ext4", "-o", "loop", image, dir); err != nil {
		return nil, fmt.Errorf("the kernel's recovery: %w", err)
	}
	t, err := kernelTree(dir)
	err = errors.Join(err, unmount(dir))
	if err != nil {
		return nil, fmt.Errorf("the kernel's recovery: %w", err)
	}
	if err := fsckClean(image); err != nil {
		return nil, fmt.Errorf("after the kernel's recovery: %w", err)
	}
	return t, nil
}

// unmount unmounts dir. Somebody else may be looking at it: a program that lists mounts, say.
func unmount(dir string) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := tool("umount", dir)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
			return err
		}
	}
}

// KernelMissing says why the kernel's recovery cannot be tried here, or "".
func KernelMissing() string {
	if os.Geteuid() != 0 {
		return "mounting through the kernel needs root"
	}
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(b), "\text4\n") {
		return "the kernel has no ext4"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "there are no loop devices"
	}
	return ""
}
