package iofault

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/files"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// depth says who looks at a medium, beside e2fsck.
type depth struct{ lanefs, kernel bool }

// judge looks at the medium that a try has left. dir is for the kernel to mount it at.
func (t *try) judge(d depth, dir string) error {
	left, err := readMedium(t.dev.File(), t.layout.LBA)
	if err != nil {
		return err
	}
	if path := os.Getenv("FAULT_SAVE"); path != "" { // for those who look at one medium
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

// fits is "" if the tree is one that the volume may have been left with.
func (t *try) fits(got Tree) string {
	if t.crowd != nil {
		return t.crowdFits(got)
	}
	between := t.trees[t.sure : t.reached+1]
	floor := map[files.ID]int{}
	for _, m := range []map[files.ID]int{t.floor, t.data} {
		for id, k := range m {
			floor[id] = max(floor[id], k-t.sure, 0)
		}
	}
	said := ""
	for k := t.reached; k >= t.sure; k-- {
		d := got.partly(t.trees[k], between, floor, t.shifts()...)
		if d == "" {
			d = t.floored(k)
		}
		if d == "" {
			return ""
		}
		if said == "" || k == t.sure && d != said {
			said += fmt.Sprintf("; it is not the tree after step %d, since %s", k, d)
		}
	}
	return fmt.Sprintf("of the trees from step %d, which is durable, to %d none is there%s", t.sure, t.reached, said)
}

// shifts is how far operations have moved bytes of files: one of them, or two.
func (t *try) shifts() []int64 {
	var one []int64
	add := func(ops []diff.Op) {
		for _, o := range ops {
			if o.Kind == diff.OpFallocate && (o.Flags == unix.FALLOC_FL_COLLAPSE_RANGE || o.Flags == unix.FALLOC_FL_INSERT_RANGE) {
				one = append(one, o.Len, -o.Len)
			}
		}
	}
	add(t.steps[min(t.sure, len(t.steps)):])
	if t.crowd != nil {
		for _, ops := range t.crowd.ops {
			add(ops)
		}
	}
	two := slices.Clone(one)
	for i, a := range one {
		for _, b := range one[i+1:] {
			two = append(two, a+b)
		}
	}
	return two
}

// floored is "" if a tree has all that was fsynced.
func (t *try) floored(k int) string {
	for id, at := range t.floor {
		if k >= at {
			continue
		}
		for p, want := range t.trees[at] {
			if want.ID != id {
				continue
			}
			if n := t.trees[k][p]; n == nil || n.ID != id || n.DiffAttrs(want) != "" || n.Size != want.Size {
				return fmt.Sprintf("%.60q, which was fsynced in step %d, is not as it was then", p, at)
			}
		}
	}
	return ""
}

// judgeFsck has e2fsck replay, finish orphans, and find nothing else to do. f is changed.
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
	// With the mark, e2fsck forgets the orphans, and mends what they leave as damage. So e2fsprogs' debugfs replays first, by the same
	// library (-n: what it reads before that may be older than its checksums), and the mark is taken away; that costs a run of its own, where there may be a mark.
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
		return found("e2fsck", "there is more to mend than orphans:\n%s", r.Output)
	}
	if err := t.look("after e2fsck's replay", f, r.Truncated); err != nil {
		return err
	}
	return wrong
}

// checkMark says whether the error mark is there if it must be, and only then.
func (t *try) checkMark(mark bool, who string) error {
	if t.noted && !mark {
		return found("mark", "the volume turned read-only, but after the replay by %s there is no error mark, and there is none in the journal's superblock (it was there before: %v)",
			who, t.marked)
	}
	if mark && t.vol != nil && !t.vol.ReadOnly() {
		return found("mark", "there is an error mark, but the volume did not turn read-only")
	}
	return nil
}

// look compares the tree of a medium that was replayed with those that may be there. cut are inodes whose attributes e2fsck
// may have dropped.
func (t *try) look(who string, f *os.File, cut map[uint64]bool) error {
	m, err := readMedium(f, t.layout.LBA)
	if err != nil {
		return err
	}
	got, err := t.tree(m)
	if err != nil {
		return found("tree "+who, "%v", err)
	}
	if len(cut) > 0 {
		got.forgive(t.trees[t.reached], cut)
	}
	if d := t.fits(got); d != "" {
		return found("tree "+who, "%s", d)
	}
	return nil
}

// forgive gives nodes the attributes that e2fsck dropped.
func (t Tree) forgive(want Tree, cut map[uint64]bool) {
	for p, n := range t {
		if w := want[p]; w != nil && cut[n.Ino] && len(n.Xattrs) < len(w.Xattrs) {
			c := *n
			c.Xattrs = maps.Clone(w.Xattrs)
			t[p] = &c
		}
	}
}

// tree is what LaneFS shows of a medium, without writing.
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

// judgeKernel has the kernel mount the medium and unmount it. e2fsck -fn finds nothing after. Where there is an error mark the
// kernel drops the orphans instead of finishing them; then there is nothing to ask e2fsck.
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

// judgeLane has LaneFS mount the medium and unmount it.
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

// again mounts a marked volume once more: the mark stays.
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
		return found("mark", "the mount after the next is not read-only, though e2fsck did not see the volume")
	}
	return nil
}
