package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Limits of all clients together, and timeouts.
const (
	maxConns = 1024

	replyTimeout = 30 * time.Second

	maxRefusing   = 64 // connections that are being refused, each until its Hello was read
	refuseTimeout = 2 * time.Second
)

// helloTimeout is how long a client may take for its Hello. Tests set another.
var helloTimeout = 30 * time.Second

// Config of a Server.
type Config struct {
	Socket string // path; a file there is replaced
	Public bool   // all users may connect
	Mount  *fs.Server
	Pools  []*residency.Pool // one for each GPU, with memory of it; the first is that of programs that do not choose
	Limits Limits
	Log    *slog.Logger // nil: discard
}

// Server serves programs until it is closed.
type Server struct {
	c      Config
	gate   *gate.Gate
	ledger *ledger
	moved  moved
	wg     sync.WaitGroup

	ending atomic.Bool // Close was called: long transfers end early
	places *places     // of rings' workers

	mu     sync.Mutex
	conns  map[*conn]bool // protected by mu
	closed bool           // protected by mu

	refusing chan struct{} // one element for each connection that is being refused
}

// Serve starts a server. The program must have called [gate.RunIfChild].
func Serve(c Config) (*Server, error) {
	mode := os.FileMode(0o600)
	if c.Public {
		mode = 0o666
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	size := int64(0)
	for _, p := range c.Pools {
		size += p.Size()
	}
	limits, err := c.Limits.withDefaults(size)
	if err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	g, err := gate.Start(c.Mount.Device(), func() (*net.UnixListener, error) { return listen(c.Socket, mode) }, c.Log)
	if err != nil {
		os.Remove(c.Socket)
		return nil, fmt.Errorf("share: %w", err)
	}
	s := &Server{c: c, gate: g, ledger: newLedger(limits), places: newPlaces(maxAllWorkers, maxClientWorkers), conns: map[*conn]bool{}, refusing: make(chan struct{}, maxRefusing)}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *Server) accept() {
	for {
		g, err := s.gate.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.c.Log.Warn("share: no clients are served", "error", err)
			continue
		}
		c := newConn(s, g)
		if err := s.admit(c); err != nil {
			select {
			case s.refusing <- struct{}{}:
				s.wg.Go(func() {
					c.refuse(err, true)
					<-s.refusing
				})
			default:
				c.refuse(err, false)
			}
			continue
		}
		s.wg.Go(func() {
			c.tenant = s.places.tenant(c.UID)
			c.serve()
			c.tenant.leave()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			s.ledger.give(c.UID, connCost.plus(c.given, -1))
		})
	}
}

// refuse replies to a Hello with an error. With read it reads the Hello first: a socket that is closed with unread bytes is reset, and the
// client may miss the reply.
func (c *conn) refuse(why error, read bool) {
	defer c.UnixConn.Close()
	c.SetDeadline(time.Now().Add(refuseTimeout))
	var h wire.Header
	if read {
		var rights []gate.Right
		var err error
		if h, _, rights, err = c.Receive(); err != nil {
			return
		}
		gate.CloseAll(rights)
	}
	status, text := wire.Failure(why, fs.Errno(why))
	_ = c.Send(wire.Encode(wire.Header{Type: wire.THello | wire.Reply, Tag: h.Tag, Status: status}, text))
}

// admit charges the user for a connection, or returns the limit that it exceeds.
func (s *Server) admit(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return unix.ESHUTDOWN
	case len(s.conns) >= maxConns:
		return fmt.Errorf("too many connections (%d of all users): close some: %w", len(s.conns), unix.EBUSY)
	}
	if err := s.ledger.take(c.UID, connCost); err != nil {
		return err
	}
	s.conns[c] = true
	return nil
}

// connCost is what a connection is charged: its socket, its notice board and its event.
var connCost = Usage{Connections: 1, Descriptors: 3, Shared: 8 * wire.Slots}

// Usage returns what each user has. Limits returns what one user may have.
func (s *Server) Usage() []Usage { return s.ledger.usage() }
func (s *Server) Limits() Limits { return s.ledger.limits }

// log logs an event that a user has caused. The rate is limited, so that no user fills the log.
func (s *Server) log(level slog.Level, uid uint32, msg string, args ...any) {
	suppressed, ok := s.ledger.mayLog(uid)
	if !ok {
		return
	}
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	s.c.Log.Log(context.Background(), level, msg, append([]any{"uid", uid}, args...)...)
}

func privileged(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Close ends all connections and returns when all their handles are closed. Memory that programs have mapped stays mapped there.
func (s *Server) Close() error {
	s.ending.Store(true)
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.UnixConn.Close()
	}
	s.mu.Unlock()
	err := s.gate.Close()
	s.wg.Wait()
	if e := os.Remove(s.c.Socket); e != nil && !os.IsNotExist(e) {
		err = errors.Join(err, e)
	}
	return err
}
