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

const (
	maxRequestLine   = 4096
	requestTimeout   = time.Minute // for the request to arrive, and for the answer to leave: a busy machine takes its time
	strangersTimeout = time.Second // of a request that is denied anyway
	finishTimeout    = time.Minute
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
	told := false // of an error that has lasted since
	for {
		conn, err := c.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !told {
				told = true
				c.d.log.Warn("the control socket does not accept a connection", "error", err.Error())
			}
			time.Sleep(100 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		told = false
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
	denied, patience := allowed(conn), requestTimeout
	if denied != nil { // it hears so once it has written: else the socket closes under it, and it hears nothing
		patience = strangersTimeout
	}
	conn.SetReadDeadline(time.Now().Add(patience))
	err := json.NewDecoder(bufio.NewReader(io.LimitReader(conn, maxRequestLine))).Decode(&req)
	if denied != nil {
		err = denied
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
