package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	// variable has the mount's device number in the environment of the process, and says that it is one.
	variable = "LANEFS_GATE"
	// processName is what ps shows.
	processName = "lanefs-gate"
	// controlFD is the process's end of the control socket.
	controlFD = 3

	startTimeout = time.Minute
	passTimeout  = 30 * time.Second
)

// Gate is the daemon's side. Its owner calls Close.
type Gate struct {
	dev uint64
	log *slog.Logger

	mu      sync.Mutex
	control *wire.Conn // to the process; nil: closed. Protected by mu
}

// Start starts the process for the mount whose files have device number dev.
func Start(dev uint64, log *slog.Logger) (*Gate, error) {
	g := &Gate{dev: dev, log: log}
	var err error
	if g.control, err = g.start(); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Gate) start() (_ *wire.Conn, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting the process that receives clients' descriptors: %w", err)
		}
	}()
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe") // also when it was deleted
	cmd.Args = []string{processName}
	cmd.Env = append(os.Environ(), variable+"="+strconv.FormatUint(g.dev, 10))
	cmd.Dir = "/" // and not in the way of an unmount
	cmd.ExtraFiles = []*os.File{theirs}
	var said bytes.Buffer // read after Wait only
	cmd.Stderr = &said
	err = cmd.Start()
	theirs.Close() // or we would not see the process's end
	if err != nil {
		ours.Close()
		return nil, err
	}
	go func() { // for ever, if one of its threads is stuck
		if err := cmd.Wait(); err != nil {
			g.log.Error("share: the process that receives clients' descriptors has ended", "error", err.Error(), "it said", said.String())
		}
	}()
	var ready [256]byte
	ours.SetReadDeadline(time.Now().Add(startTimeout))
	n, err := ours.Read(ready[:])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		ours.Close()
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("it did not say that it was ready: %w", err)
	}
	if text := string(ready[1:n]); text != "" {
		g.log.Warn("share: the process that receives clients' descriptors keeps privileges that it does not need", "error", text)
	}
	return ours, nil
}

// pair is two ends of a connection.
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

// connOf makes a connection of a descriptor, which it takes.
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

// Pass hands over the connection u of a client, user uid, and gives the one that takes its place: nothing foreign comes by
// it. u is closed in any case.
func (g *Gate) Pass(u *net.UnixConn, uid uint32) (*wire.Conn, error) {
	defer u.Close()
	c, other, err := pair()
	if err != nil {
		return nil, err
	}
	defer other.Close()
	if err := g.send(u, uid, int(other.Fd())); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Leave gives the process a socket to close in which foreign descriptors may wait. The caller closes it
// too.
func (g *Gate) Leave(s syscall.Conn) error { return g.send(s, 0) }

// send passes a socket, and what goes with it.
func (g *Gate) send(s syscall.Conn, uid uint32, with ...int) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var sent error
	err = raw.Control(func(fd uintptr) {
		fds := append([]int{int(fd)}, with...)
		sent = g.sendLocked(uid, fds...)
		if sent == nil || errors.Is(sent, net.ErrClosed) {
			return
		}
		// The process has died, by no client's doing. Its connections have ended; the next one's needs another.
		fresh, e := g.start()
		if e != nil {
			sent = errors.Join(sent, e)
			return
		}
		g.control.Close()
		g.control = fresh
		sent = g.sendLocked(uid, fds...)
	})
	return errors.Join(err, sent)
}

func (g *Gate) sendLocked(uid uint32, fds ...int) error {
	if g.control == nil {
		return net.ErrClosed
	}
	g.control.SetWriteDeadline(time.Now().Add(passTimeout))
	return g.control.Send([]byte{byte(uid), byte(uid >> 8), byte(uid >> 16), byte(uid >> 24)}, fds...)
}

// Close ends the process, and the clients' connections that are left. It waits for nothing.
func (g *Gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.control == nil {
		return nil
	}
	err := g.control.Close()
	g.control = nil
	return err
}
