package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
)

// The client's end of the control socket: a command that asks a mount's daemon.

// errNoDaemon says that no daemon listens at a mount's control socket.
var errNoDaemon = errors.New("its daemon does not answer")

// daemonConn is a connection to the daemon of a mount.
type daemonConn struct {
	m    *mountinfo.Info
	conn net.Conn
	in   *json.Decoder
}

// dial connects to the daemon of the mount m, which may be a bind mount of what it serves.
func dial(m *mountinfo.Info) (*daemonConn, error) {
	sockets, denied := controlSockets(m)
	for _, path := range sockets {
		conn, err := net.DialTimeout("unix", path, requestTimeout)
		if errors.Is(err, os.ErrPermission) {
			denied = true
		}
		if err == nil {
			return &daemonConn{m, conn, json.NewDecoder(conn)}, nil
		}
	}
	if denied {
		return nil, fmt.Errorf("the mount at %q belongs to uid %d: %w; ask as that user, or as root", m.Mountpoint, mounter(m), unix.EACCES)
	}
	if fs.Dead(m.Mountpoint) {
		return nil, fmt.Errorf("%w: it was killed, or died. lanefs umount %s clears the mount away, and the next mount replays the journal", errNoDaemon, m.Mountpoint)
	}
	if len(sockets) == 0 && os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: there is no socket of it in %q, and XDG_RUNTIME_DIR or TMPDIR may have been others when it was mounted", errNoDaemon, lookDirs(os.Geteuid()))
	}
	return nil, errNoDaemon
}

// controlSockets are where the daemon of m may listen: in our own runtime directory, or in that of the user that
// mounted it. denied: one of them cannot be read.
func controlSockets(m *mountinfo.Info) (sockets []string, denied bool) {
	dirs := lookDirs(os.Geteuid())
	if uid := mounter(m); uid >= 0 && uid != os.Geteuid() {
		dirs = append(dirs, lookDirs(uid)...)
	}
	for _, dir := range dirs {
		list, err := os.ReadDir(dir)
		denied = denied || errors.Is(err, os.ErrPermission)
		for _, e := range list {
			base, lock := strings.CutSuffix(filepath.Join(dir, e.Name()), lockEnd)
			if !lock {
				continue
			}
			if s := readServed(base + lockEnd); s != nil && s.serves(m) {
				sockets = append(sockets, base+socketEnd)
			}
		}
	}
	return sockets, denied
}

// send sends a request. The caller then calls receive until the response is the last.
func (c *daemonConn) send(req request) error {
	c.conn.SetWriteDeadline(time.Now().Add(requestTimeout))
	if err := json.NewEncoder(c.conn).Encode(req); err != nil {
		return c.lost(req, err)
	}
	return nil
}

// receive waits for the next response until the deadline.
func (c *daemonConn) receive(req request, deadline time.Time) (*response, error) {
	c.conn.SetReadDeadline(deadline)
	var out response
	switch err := c.in.Decode(&out); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, err
	case err != nil:
		return nil, c.lost(req, err)
	case out.Error != "":
		return nil, errors.New(out.Error)
	}
	return &out, nil
}

func (c *daemonConn) lost(req request, err error) error {
	return fmt.Errorf("the daemon of %q died while it was asked to %s: %w", c.m.Mountpoint, req.Op, err)
}

func (c *daemonConn) close() { c.conn.Close() }

// lateError is a daemon that has not answered in time. It is os.ErrDeadlineExceeded.
type lateError struct {
	dir     string
	timeout time.Duration
	why     string // standing's; empty: it is at work
}

func (e *lateError) Error() string {
	return fmt.Sprintf("the daemon of %q has not finished after %v%s", e.dir, e.timeout, cmp.Or(e.why, "; it is still at work"))
}

func (e *lateError) Unwrap() error { return os.ErrDeadlineExceeded }

// query sends a request to the daemon of the mount m. The timeout is for the answer, and begins again with every progress,
// which is given to tell.
func query(m *mountinfo.Info, req request, timeout time.Duration, tell func(progress)) (*response, error) {
	c, err := dial(m)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.send(req); err != nil {
		return nil, err
	}
	for {
		out, err := c.receive(req, time.Now().Add(timeout))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, &lateError{m.Mountpoint, timeout, standingOf(m)}
		}
		if err != nil || out.last() {
			return out, err
		}
		if out.Progress != nil && tell != nil {
			tell(*out.Progress)
		}
	}
}
