package lanefs

import (
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrGone says that the mount's daemon or the session has ended. A program may Connect again.
var ErrGone = fmt.Errorf("the mount's daemon has gone: %w", syscall.ECONNRESET)

// watch waits for the end of a connection from which other goroutines read.
type watch struct {
	dup  net.Conn // a duplicate of the connection, for a wait of its own; nil: not begun
	done chan struct{}

	mu    sync.Mutex
	ended bool           // protected by mu
	hooks map[*hook]bool // protected by mu
}

type hook struct{ f func() }

func (w *watch) begin(c *net.UnixConn) error {
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	dup, err := net.FileConn(f)
	if err != nil {
		return err
	}
	raw, err := dup.(syscall.Conn).SyscallConn()
	if err != nil {
		dup.Close()
		return err
	}
	w.dup, w.hooks, w.done = dup, map[*hook]bool{}, make(chan struct{})
	go func() {
		defer close(w.done)
		// Replies end the wait, too. poll(2) without events reports POLLHUP only.
		_ = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 0)
			return err == nil && n > 0
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
		for h := range w.hooks {
			h.f()
		}
		w.hooks = nil
	}()
	return nil
}

// then calls f when the connection has ended, at once if it has ended already, unless off was called before. f must not block.
func (w *watch) then(f func()) (off func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		f()
		return func() {}
	}
	h := &hook{f}
	w.hooks[h] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.hooks, h)
	}
}

func (w *watch) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// end ends the watch. Functions of then are called.
func (w *watch) end() {
	if w.dup != nil {
		w.dup.Close()
		<-w.done
	}
}
