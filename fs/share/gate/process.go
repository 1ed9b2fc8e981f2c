package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	closeTimeout = 5 * time.Second // for the file system of a foreign descriptor to answer close(2)
	maxSlow      = 64              // slow closings of one user
	maxSlowAll   = 2048            // of all users together. Go's limit is 10,000 threads
	maxClients   = 1536            // connections of one user: each may have one more slow closing. The daemon has limits of its own
	drainTimeout = 5 * time.Second // for replies to clients after the daemon has ended
)

// ready is set once RunIfChild has returned: this program can be started as the gate's process.
var ready atomic.Bool

// RunIfChild runs the gate's process where this program was started as one, and does not return then. Elsewhere it returns at once.
// A program that serves a mount's share calls it first in main, a test in TestMain: Start starts the program again, and refuses
// where it was not called.
func RunIfChild() {
	dev, ok := os.LookupEnv(variable)
	if !ok {
		ready.Store(true)
		return
	}
	runtime.LockOSThread() // exec has the capabilities of the thread that calls it: the one that gave them up
	kept, second := os.LookupEnv(confined)
	if !second {
		kept = joined([]error{confine()}) // it returns only where it fails
	}
	if err := run(dev, kept); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is the state of the gate's process.
type process struct {
	dev     uint64 // of the mount
	gpus    map[uint32]bool
	control *wire.Conn
	relays  sync.WaitGroup

	mu       sync.Mutex
	slow     map[uint32]int             // closings that outlast closeTimeout, by user. Protected by mu
	slowAll  int                        // protected by mu
	unclosed map[uint32][]*net.UnixConn // sockets that cannot be closed yet, by user. Protected by mu
	clients  map[uint32]int             // connections, by user. Protected by mu
}

// run serves clients until the control socket is closed. kept says what confine could not give up.
func run(dev, kept string) error {
	called := append([]byte(ProcessName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&called[0])), 0, 0, 0) // the name in ps
	// The signal of the parent's death is set again, because exec may have cleared it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(parentDied), 0, 0, 0); err != nil {
		return os.NewSyscallError("PR_SET_PDEATHSIG", err)
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT) // they are for the daemon, which may go on serving
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, parentDied)
	go func() {
		<-dead
		_, _ = unix.Write(abortFD, []byte("1")) // an error: the connection has ended already
	}()
	p := &process{gpus: gpuMajors(), slow: map[uint32]int{}, unclosed: map[uint32][]*net.UnixConn{}, clients: map[uint32]int{}}
	var err error
	if p.dev, err = strconv.ParseUint(dev, 10, 64); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if p.control, err = connOf(controlFD); err != nil {
		return fmt.Errorf("%s is set, but this is not lanefs's own process: %w", variable, err)
	}
	l, err := listenerOf(listenFD)
	if err != nil {
		return err
	}
	if err := restrict(); err != nil {
		kept = joined([]error{errorOf(kept), err})
	}
	if _, err := p.control.Write([]byte("+" + kept)); err != nil {
		return err
	}
	go p.accept(l)
	var b [1]byte
	_, _ = p.control.Read(b[:]) // returns when the daemon closes the socket: it sends nothing
	l.Close()
	done := make(chan struct{})
	go func() { p.relays.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drainTimeout):
	}
	return nil
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

func listenerOf(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("a socket of another kind: %v", l.Addr())
	}
	return u, nil
}

// accept accepts clients until the socket is closed.
func (p *process) accept(l *net.UnixListener) {
	for {
		u, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		uid, err := wire.Peer(u)
		if err == nil && !p.enter(uid) {
			refuse(&wire.Conn{UnixConn: u}, fmt.Errorf("too many connections: close some: %w", unix.EBUSY), time.Now().Add(time.Second))
			err = unix.EBUSY
		}
		if err != nil {
			p.disconnect(uid, u)
			continue
		}
		p.relays.Go(func() {
			defer p.leave(uid)
			p.serve(uid, &wire.Conn{UnixConn: u})
		})
	}
}

// refuse replies to a Hello with an error, without reading it.
func refuse(client *wire.Conn, why error, deadline time.Time) {
	status, text := wire.Failure(why, unix.EBUSY)
	client.SetWriteDeadline(deadline)
	_ = client.Send(wire.Encode(wire.Header{Type: wire.THello | wire.Reply, Status: status}, text))
}

// enter counts a user's connection. It returns false if the user has maxClients.
func (p *process) enter(uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[uid] >= maxClients {
		return false
	}
	p.clients[uid]++
	return true
}

func (p *process) leave(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[uid]--; p.clients[uid] == 0 {
		delete(p.clients, uid)
	}
}

// sendConn passes the daemon its end of the connection for a client.
func (p *process) sendConn(uid uint32, end *os.File) error {
	user := binary.LittleEndian.AppendUint32(nil, uid)
	var sent error
	raw, err := end.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { sent = p.control.Send(user, int(fd)) })
	}
	return errors.Join(err, sent)
}
