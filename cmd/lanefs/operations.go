package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

type request struct {
	Op     string        `json:"op"`                  // a key of operations
	For    time.Duration `json:"for_ns,omitempty"`    // of trace: how long to watch
	Slower time.Duration `json:"slower_ns,omitempty"` // of trace: a request that takes as long ends it; 0: none does
}

type response struct {
	Error   string       `json:"error,omitempty"`
	Stat    *report      `json:"stat,omitempty"`
	Check   *checkReport `json:"check,omitempty"`
	VRAM    *vramReport  `json:"vram,omitempty"`
	Leaving bool         `json:"leaving,omitempty"` // it is being unmounted
	Config  *mountConfig `json:"config,omitempty"`
	// ReadOnly says why the volume is not writable although that was not asked for.
	ReadOnly string `json:"read_only_why,omitempty"`
	Trace    []byte `json:"trace,omitempty"` // a Go execution trace
	// With one of these the reply is not the last.
	Progress *progress `json:"progress,omitempty"`
	Waiting  string    `json:"waiting,omitempty"` // for what
}

func (r *response) last() bool { return r.Progress == nil && r.Waiting == "" }

// progress is how much of some work is done.
type progress struct {
	What  string `json:"what,omitempty"` // is counted
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

// operation answers a request. tell sends a reply before the last one, now and then when the work takes long; it says whether the client
// still waits.
type operation func(d *daemon, req request, tell func(response) bool) (response, error)

// operations are the requests that a daemon answers, by Op. docs/SPEC.md describes them, and a test compares.
var operations = map[string]operation{
	"stat": whileServed(func(d *daemon, _ request, _ func(response) bool) (response, error) {
		return response{Stat: d.report()}, nil
	}),
	"check": whileServed(func(d *daemon, _ request, tell func(response) bool) (out response, err error) {
		out.Check, err = d.check(func(p progress) bool { return tell(response{Progress: &p}) })
		return out, err
	}),
	"vram": whileServed(func(d *daemon, _ request, _ func(response) bool) (out response, err error) {
		out.VRAM, err = d.share.stats()
		return out, err
	}),
	"state": func(d *daemon, _ request, _ func(response) bool) (response, error) {
		return response{Leaving: d.leaving.Load() > 0 || d.ended.Load(), Config: d.cfg, ReadOnly: d.readOnlyWhy()}, nil
	},
	"sync": func(d *daemon, _ request, _ func(response) bool) (response, error) { return response{}, d.writeOut() },
	"settle": func(d *daemon, _ request, tell func(response) bool) (out response, err error) {
		if err = d.settleAndTell(tell); err != nil {
			err = fmt.Errorf("not unmounted: %w; make room and unmount again", err)
		}
		return out, err
	},
	"await": func(d *daemon, _ request, tell func(response) bool) (response, error) {
		return response{}, d.await(tell)
	},
	"trace": func(d *daemon, req request, tell func(response) bool) (out response, err error) {
		out.Trace, err = d.trace(req.For, req.Slower, func(p progress) bool { return tell(response{Progress: &p}) })
		return out, err
	},
}

// whileServed is an operation that needs the stack, which stays open until it returns.
func whileServed(op operation) operation {
	return func(d *daemon, req request, tell func(response) bool) (response, error) {
		if !d.use() {
			return response{}, errors.New("it is being unmounted")
		}
		defer d.done()
		return op(d, req, tell)
	}
}

// handle carries out one request.
func (d *daemon) handle(req request, tell func(response) bool) (response, error) {
	op := operations[req.Op]
	if op == nil {
		return response{}, fmt.Errorf("unknown operation %q", req.Op)
	}
	if d.cfg.Raw && slices.Contains(ofVolume, req.Op) {
		return response{}, errRaw
	}
	return op(d, req, tell)
}

const awaitStep = time.Second // between two replies that say what the unmount waits for

// await waits for the end of an unmount that the client is about to begin, and tells it what the end waits for.
func (d *daemon) await(tell func(response) bool) error {
	d.leaving.Add(1)
	defer d.leaving.Add(-1)
	t := time.NewTicker(awaitStep)
	defer t.Stop()
	for tell(response{Waiting: d.waitsFor(), Progress: d.volumeProgress()}) {
		select {
		case <-d.closed:
			return d.closeErr
		case <-t.C:
		}
	}
	return errors.New("the command that waited for the unmount has ended")
}
