package iofault

import (
	"errors"
	"fmt"
	"os"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// depth says by what a medium is recovered, besides e2fsck.
type depth struct{ lanefs, kernel bool }

// judge checks the medium that a try has left. dir is where the kernel mounts it.
func (t *try) judge(d depth, dir string) error {
	left, err := readMedium(t.dev.File(), t.layout.LBA)
	if err != nil {
		return err
	}
	if path := os.Getenv("FAULT_SAVE"); path != "" { // to examine the medium of a repeated try
		if b, err := os.ReadFile(t.dev.Path()); err == nil {
			_ = os.WriteFile(path, b, 0o600)
		}
	}
	mark := t.judgeFsck(t.dev.File())
	if stageOf(mark) != "mark" && mark != nil {
		return mark
	}
	if d.kernel {
		if err := t.judgeKernel(left, dir); err != nil {
			return err
		}
	}
	if d.lanefs {
		if err := t.judgeLane(left); err != nil {
			return err
		}
	}
	return mark
}

// judgeFsck recovers f with e2fsck, which must find nothing to do but to replay the journal and finish orphans.
func (t *try) judgeFsck(f *os.File) error {
	sb, err := superblock(f)
	if err != nil {
		return found("superblock", "%v", err)
	}
	errno, err := journalErrno(f, sb)
	if err != nil {
		return found("journal superblock", "%v", err)
	}
	mark := func() bool { return errno != 0 || sb.State&disk.StateError != 0 }
	t.marked = mark()
	// With the mark set, e2fsck drops the list of orphans and repairs what they leave as damage. So, where the mark may be set,
	// debugfs replays the journal first, by the same library (-n: blocks that it reads before may be older than their
	// checksums), and the mark is cleared.
	if t.mayMark || mark() {
		if sb.FeatureIncompat.Has(disk.IncompatRecover) {
			out, err := drive.Run("debugfs", "-n", "-w", "-R", "journal_run", image.Path(f))
			if err != nil {
				return found("debugfs's replay", "%v", err)
			}
			if sb, err = superblock(f); err != nil {
				return found("superblock after debugfs's replay", "%v", err)
			}
			if sb.FeatureIncompat.Has(disk.IncompatRecover) {
				return found("debugfs's replay", "%s", out)
			}
		}
		if mark() {
			if err := unmark(f); err != nil {
				return err
			}
		}
	}
	wrong := t.checkMark(mark(), "e2fsprogs")
	r, err := image.Repair(image.Path(f))
	if err != nil {
		return found("e2fsck", "%v", err)
	}
	if r.Damage {
		return found("e2fsck", "it repaired more than orphans:\n%s", r.Output)
	}
	if err := t.look("after e2fsck's replay", f, r.Truncated); err != nil {
		return err
	}
	return wrong
}

// checkMark returns an error if the error mark is missing or must not be set, after the replay by the named program.
func (t *try) checkMark(mark bool, by string) error {
	if t.noted && !mark {
		return found("mark", "the volume turned read-only, but after the replay by %s there is no error mark, and there is none in the journal's superblock (it was there before: %v)",
			by, t.marked)
	}
	if mark && t.vol != nil && !t.vol.ReadOnly() {
		return found("mark", "there is an error mark, but the volume did not turn read-only")
	}
	return nil
}

// look compares the tree of a recovered medium with those that may be there. cut are inodes whose attributes e2fsck may have
// dropped.
func (t *try) look(when string, f *os.File, cut map[uint64]bool) error {
	m, err := readMedium(f, t.layout.LBA)
	if err != nil {
		return err
	}
	got, err := t.tree(m)
	if err != nil {
		return found("tree "+when, "%v", err)
	}
	if len(cut) > 0 {
		got.restoreXattrs(t.trees[t.reached], cut)
	}
	if d := t.fits(got); d != "" {
		return found("tree "+when, "%s", d)
	}
	return nil
}

// tree reads the tree of a medium through a read-only mount.
func (t *try) tree(m *medium) (Tree, error) {
	dev := m.device()
	defer dev.Close()
	o := t.options(func(string, ...any) {})
	o.ReadOnly = true
	v, err := ext4.Open(dev, o)
	if err != nil {
		return nil, err
	}
	got, err := walk(v, t.trees[t.reached], nil)
	return got, errors.Join(err, v.Close())
}

// judgeKernel mounts the medium with the kernel and unmounts it; e2fsck -fn must find nothing afterwards. If the error mark is
// set, the kernel drops the orphans instead of finishing them, and e2fsck is not run.
func (t *try) judgeKernel(m *medium, dir string) error {
	dev := m.device()
	defer dev.Close()
	f := dev.File()
	if err := image.WithKernel(f, dir, func() error { return nil }); err != nil {
		return found("the kernel's replay", "%v", err)
	}
	sb, err := superblock(f)
	if err != nil {
		return found("superblock after the kernel's replay", "%v", err)
	}
	mark := t.checkMark(sb.State&disk.StateError != 0, "the kernel")
	if sb.State&disk.StateError == 0 {
		if err := image.Check(image.Path(f)); err != nil {
			return found("e2fsck -fn after the kernel's replay", "%v", err)
		}
	}
	if err := t.look("after the kernel's replay", f, nil); err != nil {
		return err
	}
	if mark != nil {
		return fmt.Errorf("after the kernel's replay: %w", mark)
	}
	return nil
}

// judgeLane mounts the medium with LaneFS and unmounts it.
func (t *try) judgeLane(m *medium) error {
	dev := m.device()
	defer dev.Close()
	var said logged
	v, err := ext4.Open(dev, t.options(said.f))
	if err != nil {
		return found("LaneFS's replay", "%v%v", err, &said)
	}
	readOnly := v.ReadOnly()
	got, err := walk(v, t.trees[t.reached], nil)
	if err = errors.Join(err, v.Close()); err != nil {
		return found("LaneFS's replay", "%v%v", err, &said)
	}
	if d := t.fits(got); d != "" {
		return found("tree after LaneFS's replay", "%s%v", d, &said)
	}
	if readOnly != t.marked {
		return found("mark", "the next mount is read-only: %v, and there is an error mark: %v%v", readOnly, t.marked, &said)
	}
	if readOnly {
		return t.again(dev)
	}
	if err := image.Check(image.Path(dev.File())); err != nil {
		return found("e2fsck -fn after LaneFS's replay", "%v%v", err, &said)
	}
	return nil
}

// again mounts a marked volume once more: the mark must stay until e2fsck clears it.
func (t *try) again(dev *blockdev.TestDevice) error {
	m, err := readMedium(dev.File(), t.layout.LBA)
	if err != nil {
		return err
	}
	next := m.device()
	defer next.Close()
	v, err := ext4.Open(next, t.options(func(string, ...any) {}))
	if err != nil {
		return found("the mount after LaneFS's replay", "%v", err)
	}
	defer v.Close()
	if !v.ReadOnly() {
		return found("mark", "the mount after the next is not read-only, though e2fsck has not checked the volume")
	}
	return nil
}
