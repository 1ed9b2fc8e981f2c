package iofault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/files"
)

// try is one run of a script with one fault.
type try struct {
	*script
	k    int
	mode *Mode
	rng  *rand.Rand

	dev   *blockdev.TestDevice
	vol   *ext4.FS
	play  *player
	armed *armed
	said  logged

	at      int              // the step under way, -1: mount, len(steps): unmount
	reached int              // trees[reached] is the last that may be there
	sure    int              // trees[sure] is the first that may be there: what came before was said to be durable
	floor   map[files.ID]int // the same for single files, which were fsynced
	data    map[files.ID]int // and for the contents of those that were fdatasynced
	mu      sync.Mutex       // protects failed and strays in a crowd
	strays  [crowdSize]bool  // players that are not where the twin's are
	failed  bool             // a step failed, and was not made up for
	noted   bool             // the volume turned read-only over one fault alone: then nothing keeps the mark from the medium
	began   bool             // the volume was read-only from its mount on: there was nothing to mark yet
	mayMark bool             // the volume turned read-only, or an unmount failed
	marked  bool             // the mark was there before any replay
	closed  bool             // the volume was unmounted, and said that it went well
	how     string           // how the step ended that the fault met, for the summary
	where   string           // which step that was
}

// logged collects what a volume logs.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) f(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.b, "\n    log: "+format, args...)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// finding is what is wrong with LaneFS.
type finding struct {
	stage string // where it was seen
	what  string
}

func (f *finding) Error() string { return f.stage + ": " + f.what }

func stageOf(err error) string {
	var f *finding
	if errors.As(err, &f) {
		return f.stage
	}
	return ""
}

func found(stage, format string, args ...any) error {
	return &finding{stage, fmt.Sprintf(format, args...)}
}

// run runs the script with the fault, up to a medium that is to be judged.
func (t *try) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = found("panic", "%v\n%s", r, debug.Stack())
		}
	}()
	t.dev = t.base.device()
	t.dev.CacheWrites()
	t.floor, t.data = map[files.ID]int{}, map[files.ID]int{}
	if t.script.mount {
		t.armed = t.mode.arm(t.dev, t.k, t.rng)
		defer func() { t.armed.remove() }()
	}
	t.at = -1
	if done, err := t.mount(); done || err != nil {
		return err
	}
	t.play = newPlayer(t.vol)
	if err := t.play.reopen(t.slots); err != nil {
		if !t.script.mount {
			return found("mount", "a file cannot be opened again: %v", err)
		}
		t.failed = true
	}
	if t.crowd != nil {
		if err := t.crowd.gather(t.vol); err != nil {
			return found("crowd", "without a fault: %v", err)
		}
	}
	if !t.script.mount {
		t.armed = t.mode.arm(t.dev, t.k, t.rng)
		defer func() { t.armed.remove() }()
	}
	if t.crowd != nil {
		if err := t.crowded(); err != nil {
			return err
		}
	}
	for t.at = 0; t.at < len(t.steps) && !t.failed; t.at++ {
		if err := t.step(&t.steps[t.at]); err != nil {
			return err
		}
	}
	if t.vol.ReadOnly() {
		if err := t.turned(); err != nil {
			return err
		}
	}
	return t.end()
}

// mount mounts the volume. done says that this cannot be, and that the medium is to be judged as it is.
func (t *try) mount() (done bool, err error) {
	t.mayMark = t.script.mount
	open := func() (err error) {
		t.vol, err = ext4.Open(t.dev, t.options(t.said.f))
		return err
	}
	err = open()
	if !t.script.mount {
		if err != nil {
			return true, found("mount", "without a fault: %v", err)
		}
		return false, nil
	}
	if err == nil {
		if t.began = t.vol.ReadOnly(); t.began {
			t.how, t.where, t.failed = "mounted read-only", "mount", true
			if t.armed.hits.Load() == 0 {
				return false, found("mount", "read-only, without a fault")
			}
		}
		if t.armed.hits.Load() > 0 && t.mode.passes() && !t.vol.ReadOnly() {
			t.how = "mounted all the same"
			return false, t.see("mounted over a fault", func(got Tree) string { return got.same(t.trees[0]) })
		}
		return false, nil
	}
	if t.armed.hits.Load() == 0 {
		return true, found("mount", "without a fault: %v", err)
	}
	t.how = "mount refused"
	if n := t.dev.Outstanding(); n != 0 {
		return true, found("buffers", "%d were not released by a mount that failed", n)
	}
	if !t.mode.passes() {
		return true, nil
	}
	t.armed.remove()
	if err := open(); err != nil {
		return true, found("mount", "fails again without a fault: %v", err)
	}
	if t.began = t.vol.ReadOnly(); t.began { // the first had begun to write when it failed, and left the mark
		t.how, t.failed = "mount refused, and marked", true
		return false, nil
	}
	return false, t.see("the second mount", func(got Tree) string { return got.same(t.trees[0]) })
}

// see looks at the tree that the running mount shows.
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

// step does one operation, and looks at what it left if the fault met it.
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
			if r.err == nil && t.mode.passes() && looks(o.Kind) {
				return found("read-only", "%v only looks, but the volume turned read-only", o.Kind)
			}
			return nil
		}
		if !t.mode.passes() {
			return nil
		}
		return t.see("after a step that the fault met and that gave what it gives without one ("+show(r)+")",
			func(got Tree) string { return got.same(t.trees[t.at+1]) })
	}
	if t.armed.hits.Load() == 0 {
		return found("result", "%s, and without a fault %s", show(r), show(want))
	}
	if r.err == nil {
		return found("result", "%s, and without a fault %s", show(r), show(want))
	}
	if errors.Is(want.err, ext4.ErrNoSpace) || errors.Is(r.err, ext4.ErrNoSpace) && t.layout.Free > 0 {
		t.failed = true // how much fits may differ
		return nil
	}
	if !hit && !t.vol.ReadOnly() {
		return found("result", "%s, though the fault was over", show(r))
	}
	if t.vol.ReadOnly() {
		t.met("read-only", o)
		t.failed = true
		if hit && looks(o.Kind) && t.mode.passes() {
			return found("read-only", "%v only looks, but the volume turned read-only: %v", o.Kind, r.err)
		}
		return nil
	}
	t.failed = true
	if !t.mode.passes() {
		t.met("failed", o)
		return nil
	}
	return t.mend(o, r, want)
}

// mend looks at what a step that failed has left, and tries it again.
func (t *try) mend(o *diff.Op, r, want outcome) error {
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
			undone = !whole(o) // what is there was not promised to become durable
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

// durable notes what an operation that went well has promised.
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

// turned looks at a volume that turned read-only: what can be read there is not another's.
func (t *try) turned() error {
	t.noted, t.mayMark = t.mode.stay == once && !t.began, true
	if !t.mode.passes() {
		return nil
	}
	t.armed.remove()
	got, err := walk(t.vol, nil, t.slotsOpen())
	if err != nil {
		return nil // names may lead nowhere now
	}
	if d := got.own(t.trees[:t.reached+1], t.shifts()...); d != "" {
		return found("read-only tree", "%s", d)
	}
	return nil
}

// end unmounts or cuts the power.
func (t *try) end() error {
	cut := t.rng.IntN(2) == 0
	if !cut {
		t.at = len(t.steps)
		before := t.armed.hits.Load()
		if t.noted || t.failed && t.mode.passes() {
			t.armed.remove()
		}
		free := t.freeCounted()
		t.play.close()
		readOnly := t.vol.ReadOnly()
		err := t.vol.Close()
		t.mayMark = t.mayMark || err != nil
		if t.armed.hits.Load() > before {
			t.met("unmount", nil)
			t.noted = errors.Is(err, jbd2.ErrAborted) && t.mode.stay == once && !t.began
		}
		switch {
		case err == nil && readOnly && !t.failed && t.mode.passes():
		case err == nil && !readOnly:
			t.closed = true
			t.sure = t.reached
			if t.failed {
				t.sure--
			}
		case err != nil && t.armed.hits.Load() == 0:
			return found("unmount", "without a fault: %v", err)
		}
		if free != nil {
			return free
		}
	}
	// Nothing reaches the medium any more, nor does what the fault lets through.
	t.armed.remove()
	dead := t.dev.Inject(blockdev.Fault{Err: errors.New("the power is off")})
	defer dead()
	if cut {
		t.play.close()
		_ = t.vol.Close()
	}
	if n := t.dev.Outstanding(); n != 0 {
		return found("buffers", "%d were not released", n)
	}
	return t.dev.Cut(t.rng)
}

// freeCounted compares the count of free blocks with the bitmaps.
func (t *try) freeCounted() error {
	if t.vol.ReadOnly() || !t.mode.passes() || t.armed.hits.Load() == 0 {
		return nil
	}
	t.armed.remove()
	sum := uint64(0)
	if err := t.vol.FreeExtents(func(n uint64) { sum += n }); err != nil {
		return found("free blocks", "%v", err)
	}
	if n := t.vol.Statfs().BlocksFree; n != sum {
		return found("free blocks", "%d are counted, the bitmaps have %d", n, sum)
	}
	return nil
}

// met notes for the summary how a fault was taken.
func (t *try) met(how string, o *diff.Op) {
	if t.how == "" {
		t.how = how
		if o == nil {
			t.where = "unmount"
		}
	}
}

// same says whether two outcomes are alike for those who hear of them.
func same(a, b outcome) bool {
	if a.err == nil || b.err == nil {
		return a.err == b.err && a.ret == b.ret
	}
	return class(a.err) == class(b.err)
}

// class is the error that a caller tells apart, or itself.
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

// whole says that an operation is there as a whole or not at all.
func whole(o *diff.Op) bool {
	switch o.Kind {
	case diff.OpWrite, diff.OpPwrite, diff.OpPwritev, diff.OpMmapWrite, diff.OpCopyRange, diff.OpSendfile:
		return false
	case diff.OpFallocate:
		return o.Flags&0x08 != 0 || o.Flags&0x20 != 0 // collapse, insert
	}
	return true
}

// looks says that an operation changes nothing.
func looks(k diff.Kind) bool {
	switch k {
	case diff.OpRead, diff.OpPread, diff.OpMmapRead, diff.OpSeekMap, diff.OpStat, diff.OpStatx, diff.OpFstat,
		diff.OpReaddir, diff.OpSeekdir, diff.OpGetxattr, diff.OpListxattr, diff.OpReadlink, diff.OpAccess,
		diff.OpStatfs, diff.OpGetflags, diff.OpLseek:
		return true
	}
	return false
}

// event describes the command that the fault met.
func (t *try) event() string {
	if t.armed == nil || t.armed.hits.Load() == 0 {
		return "no command"
	}
	e := t.armed.first.Load()
	switch {
	case e == nil:
		return "an allocation"
	case e.Op == blockdev.OpFlush:
		return "a flush"
	}
	return fmt.Sprintf("the %v of %d bytes at %d", e.Op, e.Len, e.Off)
}
