package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
)

// spaceRetry is the time between two attempts to write what there was no room for.
const spaceRetry = 2 * time.Second

// settle says why the mount has to stay: something that was changed cannot be written, for the backing store has no room.
func (d *daemon) settle() error {
	if !d.use() {
		return nil
	}
	defer d.done()
	if d.cfg.Raw {
		return nil
	}
	err := d.stack.vol.Settle()
	if !errors.Is(err, blockdev.ErrNoSpace) && !errors.Is(err, ext4.ErrHeld) {
		return nil // what else there is, closing the volume will say
	}
	err = fmt.Errorf("what was changed cannot be written, and would be lost: %w", err)
	if errors.Is(err, blockdev.ErrNoSpace) {
		err = d.cfg.withStores(err)
	}
	return err
}

// awaitSpace keeps the daemon until everything is written, or a signal comes. Its mount has gone by another way than lanefs umount,
// which would have refused while there is no room.
func (d *daemon) awaitSpace(signals <-chan os.Signal) {
	for told := false; ; told = true {
		err := d.step("what was changed to be written", syncLimit, d.settle)
		if err == nil || errors.Is(err, errLimit) { // closing the volume says more
			return
		}
		what := "room for what was changed"
		d.waiting.Store(&what)
		if !told {
			d.log.Warn("the mount has gone; the daemon stays until there is room, or it is sent SIGTERM", "error", oneLine(err))
		}
		select {
		case s := <-signals:
			d.log.Error("gave up waiting for room: what was not synchronized is lost; make room, and mount it again: what was synchronized is in its journal, which e2fsck empties where there is no room",
				"signal", s.String(), "error", oneLine(err))
			return
		case <-time.After(spaceRetry):
		}
	}
}
