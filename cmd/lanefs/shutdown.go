package main

import (
	"errors"
	"fmt"
	"time"
)

// The daemon shuts down when its mount is gone, and when its mount does not come up. Each step has a limit, and says what it waits
// for: in the log, and to the command that waits for the unmount. A step that passes its limit ends the daemon as a crash would: the
// volume was written out as far as that was possible, and its journal has the rest.

const (
	usersLimit = time.Minute      // for stat, check and the like, which end by themselves
	shareLimit = time.Minute      // for programs that hold files in device memory, and the process that receives from them
	syncLimit  = 5 * time.Minute  // for what is in memory to be written
	closeLimit = 10 * time.Minute // for that, and the controller's shutdown

	reportAfter = 10 * time.Second // a wait is logged when it takes as long, and each time that it has taken twice as long
)

// waitsFor says what the daemon waits for now.
func (d *daemon) waitsFor() string {
	if w := d.waiting.Load(); w != nil {
		return *w
	}
	return waitsForMount
}

// waitsForMount is what it waits for before the first step: the last file in use, or the last place where it is mounted.
const waitsForMount = "mount"

// errLimit says that a step was given up.
var errLimit = errors.New("given up")

// step waits for f for limit at most.
func (d *daemon) step(what string, limit time.Duration, f func() error) error {
	d.waiting.Store(&what)
	done := make(chan error, 1)
	go func() { done <- f() }()
	began := time.Now()
	say := reportAfter
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-end.C:
			return fmt.Errorf("waiting for %s: %w after %v", what, errLimit, limit)
		case <-time.After(time.Until(began.Add(say))):
			d.log.Warn("the unmount waits", "for", what, "since", time.Since(began).Round(time.Second).String())
			say *= 2
		}
	}
}

// use keeps the stack open for a request, until done. False: the mount is gone, and the stack is closed or about to be. A request that
// comes so late is answered at once: the daemon ends only when all have their answer (control.finish).
func (d *daemon) use() bool {
	if d.ended.Load() {
		return false // and does not wait for those that closing the stack waits for
	}
	d.inUse.RLock()
	if d.ended.Load() {
		d.inUse.RUnlock()
		return false
	}
	return true
}

func (d *daemon) done() { d.inUse.RUnlock() }

// awaitRequests returns when no request uses the stack. From then on none will: d.ended is true.
func (d *daemon) awaitRequests() error {
	d.inUse.Lock()
	defer d.inUse.Unlock()
	return nil
}

// closeStack closes everything below the mount, which is gone. With errLimit something may still run: then the process must
// end, without another word to the volume.
func (d *daemon) closeStack() error {
	d.ended.Store(true)
	forgetUmount8(d.cfg.source(), d.cfg.Dir)
	if err := d.metrics.Close(); err != nil { // its address is free when the unmount returns
		d.log.Warn("metrics were not ended cleanly", "error", err.Error())
	}
	err := d.step("requests at the control socket", usersLimit, d.awaitRequests)
	if err == nil {
		err = d.step("programs that have files in device memory", shareLimit, d.share.close)
	}
	if errors.Is(err, errLimit) {
		// The step that is stuck may use the volume, which stays open. What is in memory is written; the next mount replays the journal.
		return errors.Join(err, d.step("the volume to be written out", syncLimit, d.stack.sync))
	}
	return errors.Join(err, d.step("the last commit, and the device to be closed", closeLimit, d.stack.Close))
}

// giveUp ends a mount that has come up and cannot be served, for why.
func (d *daemon) giveUp(why error) error {
	if d.srv != nil {
		if err := d.srv.Abandon(); err != nil {
			return errors.Join(why, err) // the volume is in use: see closeStack
		}
	}
	return errors.Join(why, d.closeStack())
}
