package iofault

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// turned checks a volume that turned read-only: no file shows another file's bytes.
func (t *try) turned() error {
	t.noted, t.mayMark = t.mode.stay == once && !t.began, true
	if !t.mode.passes() {
		return nil
	}
	t.armed.remove()
	got, err := walk(t.vol, nil, t.slotsOpen())
	if err != nil {
		return nil // there may be names without inodes now
	}
	if d := got.own(t.trees[:t.reached+1]); d != "" {
		return found("read-only tree", "%s", d)
	}
	return nil
}

// refused says that writes were refused at unmount, which leaves no mark: what was synchronized is in the log.
func refused(err error) bool {
	return errors.Is(err, blockdev.ErrNoSpace) || errors.Is(err, blockdev.ErrNoMemory) || errors.Is(err, blockdev.ErrReadOnly)
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
			t.noted = errors.Is(err, jbd2.ErrAborted) && !refused(err) && t.mode.stay == once && !t.began
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
	// From here on nothing reaches the medium, not even the blocks that the fault would let through.
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
