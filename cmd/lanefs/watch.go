package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/fs"
)

// watcher reports what an unmount waits for, after reportAfter and each time that it has waited twice as long, and ends the wait when
// the timeout is over.
type watcher struct {
	m        *mountinfo.Info
	out      io.Writer
	began    time.Time
	timeout  time.Duration
	deadline time.Time
	ended    chan struct{}
	over     chan struct{} // closed by the goroutine, at its end

	mu   sync.Mutex
	what string      // protected by mu: what is waited for now
	bar  progressBar // protected by mu
}

func watch(m *mountinfo.Info, timeout time.Duration, out io.Writer) *watcher {
	now := time.Now()
	w := &watcher{m: m, out: out, began: now, timeout: timeout, deadline: now.Add(timeout), ended: make(chan struct{}), over: make(chan struct{}),
		what: waitsForDaemon, bar: progressBar{out: out}}
	go w.run()
	return w
}

func (w *watcher) end() {
	close(w.ended)
	<-w.over
	w.show(nil)
}

func (w *watcher) run() {
	defer close(w.over)
	for say := reportAfter; ; say *= 2 {
		select {
		case <-w.ended:
			return
		case <-time.After(time.Until(w.began.Add(say))):
		}
		w.report(w.waitsFor())
	}
}

func (w *watcher) report(what string) {
	w.show(nil)
	fmt.Fprintf(w.out, "lanefs: %q: still waiting for %s (%v)\n", w.m.Mountpoint, what, time.Since(w.began).Round(time.Second))
}

// reportMounts reports at once the mounts that are known to keep the file system.
func (w *watcher) reportMounts(others []*mountinfo.Info) {
	if len(others) > 0 {
		var names []string
		for _, o := range others {
			names = append(names, describe(o))
		}
		w.report("an unmount of " + strings.Join(names, ", "))
	}
}

// waitsForDaemon is what is waited for before the daemon has said anything.
const waitsForDaemon = "its daemon, which does not answer"

func (w *watcher) set(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.what = what
}

// show shows how far the work has come; nil: no more.
func (w *watcher) show(p *progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p == nil {
		w.bar.clear()
		return
	}
	w.bar.show(*p)
}

func (w *watcher) waitsFor() string {
	w.mu.Lock()
	what := w.what
	w.mu.Unlock()
	switch what {
	case waitsForMount:
		return remainingUsers(w.m)
	case waitsForDaemon:
		return what + standingOf(w.m)
	}
	return what
}

// unmount takes the mount away.
func (w *watcher) unmount() error {
	w.set("the kernel, which takes the mount away and writes out what it has in memory")
	done := make(chan error, 1)
	go func() { done <- fs.Unmount(w.m) }()
	ended := make(chan struct{})
	defer close(ended)
	go w.countWritten(ended)
	select {
	case err := <-done:
		return err
	case <-time.After(time.Until(w.deadline)):
		return w.late()
	}
}

// countWritten shows what the kernel has written out of its page cache since it began, until ended is closed or nobody answers. How much
// it has in memory the kernel does not say for one mount.
func (w *watcher) countWritten(ended chan struct{}) {
	var first int64
	t := time.NewTicker(awaitStep)
	defer t.Stop()
	for n := 0; ; n++ {
		r, err := query(w.m, request{Op: "stat"}, requestTimeout, nil)
		if err != nil {
			return
		}
		select {
		case <-ended:
			return
		default:
		}
		if n == 0 {
			first = r.Stat.Volume.DataWritten
		} else if written := r.Stat.Volume.DataWritten - first; written > 0 {
			w.show(&progress{What: "are written out by the kernel", Done: uint64(written)})
		}
		select {
		case <-ended:
			return
		case <-t.C:
		}
	}
}

// roundTrip sends a request and waits for the last reply. It calls then once, after the first.
func (w *watcher) roundTrip(t *daemonConn, req request, then func() error) error {
	w.set(waitsForDaemon)
	if err := t.send(req); err != nil {
		return err
	}
	for {
		r, err := t.receive(req, w.deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return w.late()
		case err != nil || r.last():
			return err
		}
		if then != nil {
			if err := then(); err != nil {
				return err
			}
			then = nil
		}
		w.set(r.Waiting)
		if r.Progress != nil {
			w.show(r.Progress)
		}
	}
}

func (w *watcher) late() error {
	goesOn := ". The daemon goes on with it"
	if standingOf(w.m) != "" {
		goesOn = ""
	}
	return fmt.Errorf("%q: the unmount has not ended after %v: it waits for %s%s", w.m.Mountpoint, w.timeout, w.waitsFor(), goesOn)
}
