package share

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/fs/vram"
)

// Limits of what clients can tie up.
const (
	maxConns     = 1024
	maxUserConns = 512 // of one user who is neither root nor the daemon's
	maxFiles     = 1024
	maxMemories  = 256
	maxRings     = 8

	helloTimeout = 30 * time.Second
	replyTimeout = 30 * time.Second

	maxRefusing   = 64 // whose Hello is waited for
	refuseTimeout = 2 * time.Second
)

// Config of a Server.
type Config struct {
	Socket string // path; what is there is replaced
	Public bool   // all users may connect
	Mount  *fs.Server
	Pool   *vram.Pool
	Log    *slog.Logger
}

// Server answers programs until it is closed.
type Server struct {
	c    Config
	gate *gate.Gate
	wg   sync.WaitGroup

	mu     sync.Mutex
	conns  map[*conn]bool // protected by mu
	users  map[uint32]int // connections of each; protected by mu
	closed bool           // protected by mu

	refusing chan struct{} // a place for each connection that is being refused
}

// Serve begins to answer.
func Serve(c Config) (*Server, error) {
	mode := os.FileMode(0o600)
	if c.Public {
		mode = 0o666
	}
	g, err := gate.Start(c.Mount.Device(), func() (*net.UnixListener, error) { return listen(c.Socket, mode) }, c.Log)
	if err != nil {
		os.Remove(c.Socket)
		return nil, fmt.Errorf("share: %w", err)
	}
	s := &Server{c: c, gate: g, conns: map[*conn]bool{}, users: map[uint32]int{}, refusing: make(chan struct{}, maxRefusing)}
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
			s.c.Log.Warn("share: no clients are served", "error", err.Error())
			continue
		}
		c := &conn{s: s, Conn: g, handles: map[uint32]handle{}}
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
			c.serve()
			s.mu.Lock()
			delete(s.conns, c)
			if s.users[c.UID]--; s.users[c.UID] == 0 {
				delete(s.users, c.UID)
			}
			s.mu.Unlock()
		})
	}
}

// refuse answers a Hello. One that is not read first may cost the client the answer: a socket that is closed with something
// unread is reset.
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

// admit enters c in the books, or says why not.
func (s *Server) admit(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return unix.ESHUTDOWN
	case len(s.conns) >= maxConns, s.users[c.UID] >= maxUserConns && !privileged(c.UID):
		return fmt.Errorf("too many connections (%d of your own): close some: %w", s.users[c.UID], unix.EBUSY)
	}
	s.conns[c] = true
	s.users[c.UID]++
	return nil
}

func privileged(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Conns is how many connections there are.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Close ends all connections and returns when nothing of theirs is left. Memory that programs have mapped stays theirs.
func (s *Server) Close() error {
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
