package wire

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WatchEvery is how often a Watch looks. What a client that has gone kept waiting is given up after twice as long at most.
const WatchEvery = 50 * time.Millisecond

// Watch looks whether the peer of a connection has gone while its request is served: nobody receives meanwhile, who would see the end. It reads nothing, so
// the peer's next request, if there is one, stays where it is. A request that is answered at once costs two atomic operations: the timer runs while requests
// come, and not on a connection that is silent.
type Watch struct {
	conn   syscall.RawConn // nil: a connection that was closed before
	events int16
	gone   func()

	turn  atomic.Uint64 // odd while a request is served
	on    atomic.Bool   // look will be called. Who makes it true may use timer
	timer *time.Timer
	seen  uint64 // turn, when look last looked; look's
}

// NewWatch makes one. events is what says that the peer has gone: POLLRDHUP is that it has shut down its side of the connection, if it still
// receives or not; 0 that it has closed it. gone is called from a goroutine of its own, at most once for each request, also if this end of the connection
// was closed. It may be called just after End.
func NewWatch(c *net.UnixConn, events int16, gone func()) *Watch {
	w := &Watch{events: events, gone: gone}
	w.conn, _ = c.SyscallConn()
	w.timer = time.AfterFunc(time.Hour, w.look)
	w.timer.Stop()
	return w
}

// Begin and End are called before and after a request is served, by one goroutine.
func (w *Watch) Begin() {
	w.turn.Add(1)
	w.lookLater()
}

func (w *Watch) End() { w.turn.Add(1) }

func (w *Watch) lookLater() {
	if !w.on.Load() && w.on.CompareAndSwap(false, true) {
		w.timer.Reset(WatchEvery)
	}
}

// look looks for the peer if the request of its last look is still served. It looks again unless none was served since.
func (w *Watch) look() {
	now := w.turn.Load()
	over := now == w.seen && now%2 == 0
	if now == w.seen && !over && w.hasGone() {
		w.gone()
		over = true
	}
	w.seen = now
	if !over {
		w.timer.Reset(WatchEvery)
		return
	}
	w.on.Store(false) // before turn is looked at: a request that begins now has either been seen here or sees this
	if w.turn.Load() != now {
		w.lookLater()
	}
}

// hasGone polls the connection.
func (w *Watch) hasGone() (gone bool) {
	if w.conn == nil {
		return true
	}
	err := w.conn.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: w.events}}
		n, err := unix.Ppoll(p, &unix.Timespec{}, nil)
		gone = err == nil && n > 0 && p[0].Revents&(w.events|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || errors.Is(err, net.ErrClosed)
}
