package main

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lanefs/lanefs/fs/ext4"
)

// A volume tells how far its long work has come: recovery and orphans while it is opened, writing metadata home while it is closed. Of
// the first the command that mounts is told over the daemon's pipe, of the second the command that unmounts, over the control socket.

// workFresh is how long what a volume told is of interest: what it told before belongs to other work.
const workFresh = 5 * time.Second

// lastProgress is what a volume told last.
type lastProgress struct {
	mu sync.Mutex
	p  progress  // protected by mu, as is at
	at time.Time // zero: nothing
}

func (l *lastProgress) set(p ext4.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p, l.at = progress{What: string(p.Work), Done: p.Done, Total: p.Total}, time.Now()
}

// get is nil if nothing was told lately.
func (l *lastProgress) get() *progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() || time.Since(l.at) > workFresh {
		return nil
	}
	p := l.p
	return &p
}

// volumeProgress is how far the volume's long work has come, nil if there is none.
func (d *daemon) volumeProgress() *progress { return d.work.get() }

// settleAndTell is settle, which tells how far it has come.
func (d *daemon) settleAndTell(tell func(response) bool) error {
	done := make(chan error, 1)
	go func() { done <- d.settle() }()
	t := time.NewTicker(tellInterval)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-t.C:
			if p := d.volumeProgress(); p != nil {
				tell(response{Progress: p, Waiting: waitsForMetadata}) // a command that has ended does not end the work
			}
		}
	}
}

// waitsForMetadata is what an unmount waits for at first.
const waitsForMetadata = "its metadata to be written"

// tellEvery makes of tell one that is called often and tells only now and then, but the end always.
func tellEvery(interval time.Duration, tell func(progress)) func(ext4.Progress) {
	var last time.Time
	return func(p ext4.Progress) {
		if now := time.Now(); p.Done == p.Total || now.Sub(last) >= interval {
			last = now
			tell(progress{What: string(p.Work), Done: p.Done, Total: p.Total})
		}
	}
}

const progressPrefix = "progress: " // of a line of the daemon's pipe, before JSON

// writeProgress writes a line of the daemon's pipe.
func writeProgress(w io.Writer, p progress) {
	if b, err := json.Marshal(p); err == nil {
		fmt.Fprintf(w, "%s%s\n", progressPrefix, b)
	}
}
