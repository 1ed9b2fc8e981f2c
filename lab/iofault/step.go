package iofault

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// see reads the tree of the running mount and passes it to judge.
func (t *try) see(when string, judge func(Tree) string) error {
	t.armed.remove()
	got, err := walk(t.vol, t.trees[t.reached], t.slotsOpen())
	if err != nil {
		return found("tree of the running mount", "%s: %v", when, err)
	}
	if d := judge(got); d != "" {
		return found("tree of the running mount", "%s: %s", when, d)
	}
	return nil
}

func (t *try) slotsOpen() []*slot {
	if t.play == nil {
		return nil
	}
	return t.play.slots
}

// step does one operation, and checks the tree if the fault hit it.
func (t *try) step(o *diff.Op) error {
	before := t.armed.hits.Load()
	if before > 0 && t.how == "" {
		t.how, t.where = "between the steps", "background"
	}
	r, want := t.play.do(o, false), t.results[t.at]
	hit := t.armed.hits.Load() > before
	t.reached = t.at + 1
	if hit && t.where == "" {
		t.where = string(o.Kind)
	}
	if same(r, want) {
		t.durable(o, r)
		if !hit {
			return nil
		}
		t.met("as without a fault", o)
		if t.vol.ReadOnly() {
			if r.err == nil && t.mode.passes() && reads(o.Kind) {
				return found("read-only", "%v only reads, but the volume turned read-only", o.Kind)
			}
			return nil
		}
		if !t.mode.passes() {
			return nil
		}
		return t.see("after a step that the fault hit and that returned what it returns without one ("+show(r)+")",
			func(got Tree) string { return got.same(t.trees[t.at+1]) })
	}
	if t.armed.hits.Load() == 0 {
		return found("result", "%s, and without a fault %s", show(r), show(want))
	}
	if r.err == nil {
		return found("result", "%s, and without a fault %s", show(r), show(want))
	}
	if errors.Is(want.err, ext4.ErrNoSpace) || errors.Is(r.err, ext4.ErrNoSpace) && t.layout.Free > 0 {
		t.failed = true // the space that is left may differ
		return nil
	}
	if !hit && !t.vol.ReadOnly() {
		return found("result", "%s, though the fault was over", show(r))
	}
	if t.vol.ReadOnly() {
		t.met("read-only", o)
		t.failed = true
		if hit && reads(o.Kind) && t.mode.passes() {
			return found("read-only", "%v only reads, but the volume turned read-only: %v", o.Kind, r.err)
		}
		return nil
	}
	t.failed = true
	if !t.mode.passes() {
		t.met("failed", o)
		return nil
	}
	return t.retry(o, r, want)
}

// retry checks the tree after a step that failed, and repeats the step.
func (t *try) retry(o *diff.Op, r, want outcome) error {
	prev, next := t.trees[t.at], t.trees[t.at+1]
	undone := false
	if err := t.see("after a step that failed ("+show(r)+")", func(got Tree) string {
		asBefore := got.same(prev)
		switch asAfter := got.same(next); {
		case asBefore == "":
			undone = true
			t.met("undone", o)
			return ""
		case asAfter == "":
			t.met("done", o)
			undone = !whole(o) // it failed, so it need not become durable
			return ""
		case whole(o):
			return "neither what was before (" + asBefore + ") nor what is after (" + asAfter + ")"
		}
		undone = true
		t.met("done in part", o)
		between := []Tree{prev, next}
		if d := got.partly(prev, between, nil); d != "" {
			if d2 := got.partly(next, between, nil); d2 != "" {
				return "half done: it is not what was before, since " + d + ", and not what is after, since " + d2
			}
		}
		return ""
	}); err != nil {
		return err
	}
	if !undone {
		t.failed = false
		return nil
	}
	r2 := t.play.do(o, true)
	if errors.Is(r2.err, ext4.ErrNoSpace) && t.layout.Free > 0 {
		return nil
	}
	if !same(r2, want) {
		return found("second try", "%s, the first try gave %s, and without a fault it is %s", show(r2), show(r), show(want))
	}
	t.failed = false
	if err := t.see("after a second try", func(got Tree) string { return got.same(next) }); err != nil {
		return err
	}
	t.durable(o, r2)
	return nil
}

// durable records what an operation that succeeded has made durable.
func (t *try) durable(o *diff.Op, r outcome) {
	if r.err != nil {
		return
	}
	switch o.Kind {
	case diff.OpSync, opTrim:
		t.sure = t.at + 1
	case diff.OpFsync, diff.OpFdatasync, diff.OpWrite, diff.OpPwrite, diff.OpPwritev, diff.OpMmapWrite:
		s := t.play.slots[o.FD]
		n := t.trees[t.at+1].open(s)
		switch {
		case n == nil:
		case o.Kind == diff.OpFsync, o.Kind != diff.OpFdatasync && s.flags&(unix.O_SYNC|unix.O_DSYNC) != 0:
			t.floor[n.ID] = t.at + 1
		case o.Kind == diff.OpFdatasync:
			t.data[n.ID] = t.at + 1
		}
	}
}

// open finds the node of an open file in the twin's tree.
func (t Tree) open(s *slot) *files.Node {
	if s == nil || s.path == "" || s.in.Attr().Links == 0 {
		return nil
	}
	n := t["/"+strings.Trim(s.path, "/")]
	if n == nil || n.Ino != uint64(s.in.Ino()) {
		return nil
	}
	return n
}

// same reports whether two outcomes are the same to the caller of an operation.
func same(a, b outcome) bool {
	if a.err == nil || b.err == nil {
		return a.err == b.err && a.ret == b.ret
	}
	return class(a.err) == class(b.err)
}

// class returns the error of package ext4 that err is, errIO for all others.
func class(err error) error {
	for _, e := range []error{errSkipped, ext4.ErrNotExist, ext4.ErrExist, ext4.ErrNotDir, ext4.ErrIsDir, ext4.ErrNotEmpty, ext4.ErrInvalid,
		ext4.ErrNameTooLong, ext4.ErrNoSpace, ext4.ErrTooManyLink, ext4.ErrTooBig, ext4.ErrReadOnly, ext4.ErrCorrupt,
		ext4.ErrNoAttr, ext4.ErrNotSup, ext4.ErrPerm, ext4.ErrRange, ext4.ErrNoData} {
		if errors.Is(err, e) {
			return e
		}
	}
	return errIO
}

var errIO = errors.New("I/O error")

func show(r outcome) string {
	if r.err != nil {
		return fmt.Sprintf("%d with %q", r.ret, r.err)
	}
	return fmt.Sprintf("%d", r.ret)
}

// whole reports whether an operation is atomic: done as a whole or not at all.
func whole(o *diff.Op) bool {
	switch o.Kind {
	case diff.OpWrite, diff.OpPwrite, diff.OpPwritev, diff.OpMmapWrite, diff.OpCopyRange, diff.OpSendfile, diff.OpFallocate:
		return false
	}
	return true
}

// reads reports whether an operation changes nothing.
func reads(k diff.Kind) bool {
	switch k {
	case diff.OpRead, diff.OpPread, diff.OpMmapRead, diff.OpSeekMap, diff.OpStat, diff.OpStatx, diff.OpFstat,
		diff.OpReaddir, diff.OpSeekdir, diff.OpGetxattr, diff.OpListxattr, diff.OpReadlink, diff.OpAccess,
		diff.OpStatfs, diff.OpGetflags, diff.OpLseek:
		return true
	}
	return false
}
