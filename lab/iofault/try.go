package iofault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
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
	over  blockdev.Device // what the volume is on: dev, or an array over it
	vol   *ext4.FS
	play  *player
	armed *armed
	said  logged

	at      int              // the current step, -1: mount, len(steps): unmount
	reached int              // trees[reached] is the last that may be there
	sure    int              // trees[sure] is the first that may be there: it is durable
	floor   map[files.ID]int // the same for single files, which were fsynced
	data    map[files.ID]int // and for the contents of those that were fdatasynced
	mu      sync.Mutex       // protects failed and strays in a crowd
	strays  [crowdSize]bool  // players whose files may differ from the twin's
	failed  bool             // a step failed, and its repetition did not succeed
	noted   bool             // the volume turned read-only because of a single fault, so the mark must reach the medium
	began   bool             // the volume was read-only from its mount on, before it could be marked
	mayMark bool             // the volume turned read-only, or an unmount failed
	marked  bool             // the mark was there before any replay
	closed  bool             // the unmount succeeded
	how     string           // how the step ended that the fault hit, for the summary
	where   string           // the kind of that step
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

// finding is an error of LaneFS.
type finding struct {
	stage string // in which part of the try
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

// run runs the script with the fault, up to the medium for judge.
func (t *try) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = found("panic", "%v\n%s", r, debug.Stack())
		}
	}()
	t.dev = t.base.device()
	t.dev.CacheWrites()
	if t.over, err = array(t.dev, t.layout.Members); err != nil {
		return err
	}
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

// mount mounts the volume. done reports that the mount fails because of the fault: the medium is judged as it is.
func (t *try) mount() (done bool, err error) {
	t.mayMark = t.script.mount
	open := func() (err error) {
		t.vol, err = ext4.Open(t.over, t.options(t.said.f))
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
			t.how = "mounted nevertheless"
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
	if t.began = t.vol.ReadOnly(); t.began { // the first mount had begun to write when it failed, and left the mark
		t.how, t.failed = "mount refused, and marked", true
		return false, nil
	}
	return false, t.see("the second mount", func(got Tree) string { return got.same(t.trees[0]) })
}

// met records for the summary how the step ended that the fault hit.
func (t *try) met(how string, o *diff.Op) {
	if t.how == "" {
		t.how = how
		if o == nil {
			t.where = "unmount"
		}
	}
}

// event describes the command that the fault hit.
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
