package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	restartPause    = time.Second // before the process is started again
	turnedAwayPause = time.Minute // between two lines of the log
)

// Gate is the daemon's side of the process. The daemon calls Close.
type Gate struct {
	dev    uint64
	listen func() (*net.UnixListener, error)
	log    *slog.Logger
	closed chan struct{}

	mu      sync.Mutex
	control *wire.Conn // to the process. Protected by mu; replaced by Accept only
	said    time.Time  // when the log last had a client that was turned away; Accept's
}

// Start starts the process for the mount whose files have device number dev. listen makes the socket that clients connect to; it is
// called again if the process dies, and the caller of Close removes it. The program must have called [RunIfChild].
func Start(dev uint64, listen func() (*net.UnixListener, error), log *slog.Logger) (*Gate, error) {
	g := &Gate{dev: dev, listen: listen, log: log, closed: make(chan struct{})}
	var err error
	if g.control, err = g.start(); err != nil {
		return nil, err
	}
	return g, nil
}

// Accept waits for the next client. It returns net.ErrClosed after Close. Only one goroutine may call it.
func (g *Gate) Accept() (*Conn, error) {
	for {
		c, err := g.receive()
		if err == nil {
			return c, nil
		}
		if errors.Is(err, errTurnedAway) {
			if time.Since(g.said) > turnedAwayPause {
				g.said = time.Now()
				g.log.Warn("share: a program was turned away", "error", err)
			}
			continue
		}
		select {
		case <-g.closed:
			return nil, net.ErrClosed
		case <-time.After(restartPause):
		}
		// The process has died. Its connections have ended. New ones need another process.
		g.log.Warn("share: starting another process for clients' descriptors", "error", err)
		fresh, err := g.start()
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		g.control.Close()
		g.control = fresh
		select {
		case <-g.closed:
			fresh.Close()
		default:
		}
		g.mu.Unlock()
	}
}

// errTurnedAway is a client whose socket the daemon has no descriptor for. Its connection has ended, and nothing else.
var errTurnedAway = errors.New("the daemon has no descriptors left (ulimit -n)")

func (g *Gate) receive() (*Conn, error) {
	g.mu.Lock()
	control := g.control
	g.mu.Unlock()
	var user [4]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := control.ReadMsgUnix(user[:], oob)
	if err != nil {
		return nil, err
	}
	fds, err := wire.ParseRights(oob[:oobn])
	if err == nil && n == len(user) && len(fds) == 0 && flags&unix.MSG_CTRUNC != 0 {
		return nil, errTurnedAway
	}
	if err != nil || n != len(user) || len(fds) != 1 {
		wire.CloseAll(fds)
		return nil, errors.Join(fmt.Errorf("it sent %d bytes and %d descriptors", n, len(fds)), err)
	}
	c, err := connOf(fds[0])
	if err != nil { // it takes a second descriptor for a moment
		return nil, fmt.Errorf("%w: %w", errTurnedAway, err)
	}
	return &Conn{Conn: c, UID: binary.LittleEndian.Uint32(user[:])}, nil
}

// Close ends the process and the connections that are left. It does not wait for the process.
func (g *Gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.closed:
		return nil
	default:
	}
	close(g.closed)
	return g.control.Close()
}

// pair returns the two ends of a connection.
func pair() (*wire.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	other := os.NewFile(uintptr(fds[1]), "gate")
	c, err := connOf(fds[0])
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return c, other, nil
}

// connOf makes a Conn of a socket. It takes over the descriptor.
func connOf(fd int) (*wire.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a socket of another kind: %v", c.LocalAddr())
	}
	return &wire.Conn{UnixConn: u}, nil
}
