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

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	vrampool "github.com/lanefs/lanefs/fs/vram"
)

// The control socket takes one request a connection: a line of JSON, answered by another, before which there may be
// lines that tell how far the work has come. Only the daemon's user and root may ask.

type request struct {
	Op string `json:"op"` // stat, check, vram, umount
}

type response struct {
	Error    string          `json:"error,omitempty"`
	Stat     *report         `json:"stat,omitempty"`
	Check    *checkReport    `json:"check,omitempty"`
	VRAM     *vrampool.Stats `json:"vram,omitempty"`
	Progress *progress       `json:"progress,omitempty"` // the answer is still to come
}

// progress is how much of some work is done.
type progress struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

const (
	maxRequestLine = 4096
	requestTimeout = time.Minute // for the request to arrive, and for the answer to leave: a busy machine takes its time
	finishTimeout  = time.Minute
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
	l.SetUnlinkOnClose(false) // whoever holds the lock removes it
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
			c.d.log.Warn("control socket", "error", err.Error())
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
		out, err = c.d.handle(req, func(p progress) bool { return answer(response{Progress: &p}) == nil })
	}
	if err != nil {
		out.Error = oneLine(err)
	}
	if err := answer(out); err != nil {
		c.d.log.Warn("control socket: answering", "error", err.Error())
	}
}

// allowed checks who is at the other end.
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

// handle carries out one request. tell is to be called now and then when that takes long; it reports whether anybody
// still waits.
func (d *daemon) handle(req request, tell func(progress) bool) (out response, err error) {
	switch req.Op {
	case "stat", "check", "vram":
		d.inUse.RLock()
		defer d.inUse.RUnlock()
		if d.ended.Load() {
			return out, errors.New("it is being unmounted")
		}
		if req.Op == "stat" {
			out.Stat = d.report()
			return out, nil
		}
		if req.Op == "vram" {
			out.VRAM, err = d.share.stats()
			return out, err
		}
		out.Check, err = d.check(tell)
		return out, err
	case "umount":
		if err := d.settle(); err != nil {
			return out, fmt.Errorf("not unmounted: %w; make room and unmount again", err)
		}
		if err := d.unmount(); err != nil {
			return out, err
		}
		<-d.closed
		return out, d.closeErr
	}
	return out, fmt.Errorf("unknown operation %q", req.Op)
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

// errNoDaemon says that nobody listens at a mount's control socket.
var errNoDaemon = errors.New("its daemon does not answer")

// ask sends a request to the daemon of the mount at dir. The timeout is for the answer, and begins again with every
// progress, which is given to tell.
func ask(m *mountinfo.Info, req request, timeout time.Duration, tell func(progress)) (*response, error) {
	var denied error
	for _, path := range controlSockets(m) {
		conn, err := net.DialTimeout("unix", path, requestTimeout)
		if errors.Is(err, os.ErrPermission) {
			denied = fmt.Errorf("the mount at %q belongs to uid %d: %w", m.Mountpoint, mounter(m), unix.EACCES)
		}
		if err != nil {
			continue
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(timeout))
		var out response
		err = json.NewEncoder(conn).Encode(req)
		in := json.NewDecoder(conn)
		for more := err == nil; more; {
			out = response{}
			err = in.Decode(&out)
			if more = err == nil && out.Progress != nil; more {
				conn.SetDeadline(time.Now().Add(timeout))
				tell(*out.Progress)
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("the daemon of %q has not finished after %v; it is still at work", m.Mountpoint, timeout)
		case err != nil:
			return nil, fmt.Errorf("the daemon of %q died while it was asked to %s: %w", m.Mountpoint, req.Op, err)
		case out.Error != "":
			return nil, errors.New(out.Error)
		}
		return &out, nil
	}
	if denied != nil {
		return nil, denied
	}
	return nil, errNoDaemon
}
