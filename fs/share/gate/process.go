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
	patience   = 5 * time.Second // for a foreign file system to let go of a descriptor
	maxLate    = 64              // closings of one user that last longer, before the user is refused
	maxLateAll = 2048            // of all users. Go gives up at 10,000 threads
	maxVisits  = 1536            // connections of one user: each may have one closing more that is late. The daemon has limits of its own
	lastWords  = 5 * time.Second // for the clients of a daemon that has gone
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

// process is the gate.
type process struct {
	dev     uint64 // of the mount
	gpus    map[uint32]bool
	control *wire.Conn
	visits  sync.WaitGroup

	mu      sync.Mutex
	late    map[uint32]int             // closings that outlasted patience, by user. Protected by mu
	lateAll int                        // protected by mu
	parked  map[uint32][]*net.UnixConn // sockets that cannot be closed, by user. Protected by mu
	present map[uint32]int             // visitors, by user. Protected by mu
}

// run is the life of the process: it ends with the control socket. kept is what it could not give up.
func run(dev, kept string) error {
	called := append([]byte(processName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&called[0])), 0, 0, 0) // for ps; /proc/self/exe made it "exe"
	// The end of the daemon's thread, once more: an exec may have forgotten it. This is the thread that is asked for it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(died), 0, 0, 0); err != nil {
		return os.NewSyscallError("PR_SET_PDEATHSIG", err)
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT) // those are for the daemon, which may serve on
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, died)
	go func() {
		<-dead
		_, _ = unix.Write(abortFD, []byte("1")) // nothing to write to: it has ended by itself
	}()
	p := &process{gpus: gpuMajors(), late: map[uint32]int{}, parked: map[uint32][]*net.UnixConn{}, present: map[uint32]int{}}
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
	_, _ = p.control.Read(b[:]) // the daemon says nothing: its end
	l.Close()
	done := make(chan struct{})
	go func() { p.visits.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(lastWords):
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

// accept lets clients in, until the socket is closed.
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
			p.dismiss(uid, u)
			continue
		}
		p.visits.Go(func() {
			defer p.leave(uid)
			p.visit(uid, &wire.Conn{UnixConn: u})
		})
	}
}

// refuse answers a Hello that was not read.
func refuse(client *wire.Conn, why error, deadline time.Time) {
	status, text := wire.Failure(why, unix.EBUSY)
	client.SetWriteDeadline(deadline)
	_ = client.Send(wire.Encode(wire.Header{Type: wire.THello | wire.Reply, Status: status}, text))
}

// enter counts a user's visitors.
func (p *process) enter(uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.present[uid] >= maxVisits {
		return false
	}
	p.present[uid]++
	return true
}

func (p *process) leave(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.present[uid]--; p.present[uid] == 0 {
		delete(p.present, uid)
	}
}

// announce gives the daemon its end of a visitor's connection.
func (p *process) announce(uid uint32, end *os.File) error {
	user := binary.LittleEndian.AppendUint32(nil, uid)
	var sent error
	raw, err := end.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { sent = p.control.Send(user, int(fd)) })
	}
	return errors.Join(err, sent)
}
