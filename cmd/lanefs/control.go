package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// The control socket takes one request a connection: a line of JSON, answered by another, before which there may be
// lines that tell how far the work has come. Only the daemon's user and root may ask. docs/SPEC.md describes the requests.

type request struct {
	Op string `json:"op"` // a key of operations
}

type response struct {
	Error   string       `json:"error,omitempty"`
	Stat    *report      `json:"stat,omitempty"`
	Check   *checkReport `json:"check,omitempty"`
	VRAM    *vramReport  `json:"vram,omitempty"`
	Leaving bool         `json:"leaving,omitempty"` // it is being unmounted
	Config  *mountConfig `json:"config,omitempty"`
	// With one of these the reply is not the last.
	Progress *progress `json:"progress,omitempty"`
	Waiting  string    `json:"waiting,omitempty"` // for what
}

func (r *response) last() bool { return r.Progress == nil && r.Waiting == "" }

// progress is how much of some work is done.
type progress struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

const (
	maxRequestLine = 4096
	requestTimeout = time.Minute // for the request to arrive, and for the answer to leave: a busy machine takes its time
	finishTimeout  = time.Minute
	awaitStep      = time.Second // between two replies that say what the unmount waits for
)

// control is the listening side.
type control struct {
	d *daemon
	l *net.UnixListener

	mu    sync.Mutex
	conns map[net.Conn]struct{} // protected by mu
	wg    sync.WaitGroup
}

// listen makes the socket and serves it. The caller holds the mount point's lock, so a socket that is there already is
// a dead daemon's.
func listen(path string, d *daemon) (*control, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket %q: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // the holder of the mount point's lock removes it
	c := &control{d: d, l: l, conns: map[net.Conn]struct{}{}}
	c.wg.Go(c.accept)
	return c, nil
}

func (c *control) accept() {
	for {
		conn, err := c.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.d.log.Warn("the control socket does not accept a connection", "error", err.Error())
			time.Sleep(100 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		c.mu.Lock()
		c.conns[conn] = struct{}{}
		c.mu.Unlock()
		c.wg.Go(func() {
			c.serve(conn)
			conn.Close()
			c.mu.Lock()
			delete(c.conns, conn)
			c.mu.Unlock()
		})
	}
}

func (c *control) serve(conn *net.UnixConn) {
	var out response
	var req request
	conn.SetReadDeadline(time.Now().Add(requestTimeout))
	err := allowed(conn)
	if err == nil {
		err = json.NewDecoder(bufio.NewReader(io.LimitReader(conn, maxRequestLine))).Decode(&req)
	}
	answer := func(out response) error {
		conn.SetWriteDeadline(time.Now().Add(requestTimeout))
		return json.NewEncoder(conn).Encode(out)
	}
	if err == nil {
		out, err = c.d.handle(req, func(r response) bool { return answer(r) == nil })
	}
	if err != nil {
		out.Error = oneLine(err)
	}
	if err := answer(out); err != nil {
		c.d.log.Warn("a request at the control socket stays without an answer", "op", req.Op, "error", err.Error())
	}
}

// allowed checks the user at the other end.
func allowed(conn *net.UnixConn) error {
	uid, err := wire.Peer(conn)
	if err != nil {
		return err
	}
	if uid != 0 && int(uid) != os.Geteuid() {
		return fmt.Errorf("uid %d may not control a mount of uid %d", uid, os.Geteuid())
	}
	return nil
}

// operations are the requests that a daemon answers, by Op. docs/SPEC.md describes them, and a test compares. tell sends a reply
// before the last one, now and then when the work takes long; it says whether the client still waits.
var operations = map[string]func(d *daemon, tell func(response) bool) (response, error){
	"stat": whileServed(func(d *daemon, _ func(response) bool) (response, error) { return response{Stat: d.report()}, nil }),
	"check": whileServed(func(d *daemon, tell func(response) bool) (out response, err error) {
		out.Check, err = d.check(func(p progress) bool { return tell(response{Progress: &p}) })
		return out, err
	}),
	"vram": whileServed(func(d *daemon, _ func(response) bool) (out response, err error) {
		out.VRAM, err = d.share.stats()
		return out, err
	}),
	"state": func(d *daemon, _ func(response) bool) (response, error) {
		return response{Leaving: d.leaving.Load() > 0 || d.ended.Load(), Config: d.cfg}, nil
	},
	"sync": func(d *daemon, _ func(response) bool) (response, error) { return response{}, d.writeOut() },
	"settle": func(d *daemon, _ func(response) bool) (out response, err error) {
		if err = d.settle(); err != nil {
			err = fmt.Errorf("not unmounted: %w; make room and unmount again", err)
		}
		return out, err
	},
	"await": func(d *daemon, tell func(response) bool) (response, error) { return response{}, d.await(tell) },
}

// whileServed is an operation that needs the stack, which stays open until it returns.
func whileServed(op func(*daemon, func(response) bool) (response, error)) func(*daemon, func(response) bool) (response, error) {
	return func(d *daemon, tell func(response) bool) (response, error) {
		d.inUse.RLock()
		defer d.inUse.RUnlock()
		if d.ended.Load() {
			return response{}, errors.New("it is being unmounted")
		}
		return op(d, tell)
	}
}

// handle carries out one request.
func (d *daemon) handle(req request, tell func(response) bool) (response, error) {
	op := operations[req.Op]
	if op == nil {
		return response{}, fmt.Errorf("unknown operation %q", req.Op)
	}
	return op(d, tell)
}

// await waits for the end of an unmount that the client is about to begin, and tells it what the end waits for.
func (d *daemon) await(tell func(response) bool) error {
	d.leaving.Add(1)
	defer d.leaving.Add(-1)
	t := time.NewTicker(awaitStep)
	defer t.Stop()
	for tell(response{Waiting: d.waitsFor()}) {
		select {
		case <-d.closed:
			return d.closeErr
		case <-t.C:
		}
	}
	return errors.New("the command that waited for the unmount has ended")
}

// finish ends the socket after the answers that are due have left.
func (c *control) finish() {
	c.l.Close()
	done := make(chan struct{})
	go func() { c.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(finishTimeout):
		c.mu.Lock()
		for conn := range c.conns {
			conn.Close()
		}
		c.mu.Unlock()
	}
}
