package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Signals between a client and the daemon. Each goes one way. A client must not be able to block the daemon with one.
//
// An Event, from the daemon to the client, is a pair of sockets. With an eventfd both sides would have the same open file: the client could
// clear O_NONBLOCK and fill the counter, and the daemon's write would block for ever. A pipe has a lock that a reader holds while it copies
// to memory, and a page fault there may never end. The two sockets of a pair are two open files with flags of their own, and sending
// takes no lock that the receiver holds during a copy. The daemon sends with MSG_DONTWAIT in addition.
//
// A Doorbell, from the client to the daemon, is an eventfd, because a client cannot pass descriptors through one. The daemon reads it with
// RWF_NOWAIT, which does not depend on the flags of the open file.

// Event is the daemon's end of a signal to a client. Its methods may be called from any goroutine, also during Close.
type Event struct {
	f   *os.File
	raw syscall.RawConn
}

// eventBuffer is the size of the socket's send buffer (SO_SNDBUF). Linux raises it to its minimum, which has room for a few signals.
const eventBuffer = 1

// NewEvent makes a signal. The descriptor is the client's end: as with an eventfd, 8 bytes can be read from it for each signal.
func NewEvent() (*Event, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	// The client must not send anything, least of all descriptors: closing a socket closes the descriptors in its queue.
	err = os.NewSyscallError("shutdown", unix.Shutdown(fds[0], unix.SHUT_RD))
	if err == nil {
		err = os.NewSyscallError("SO_SNDBUF", unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, eventBuffer))
	}
	e := &Event{f: os.NewFile(uintptr(fds[0]), "signal")}
	if err == nil {
		e.raw, err = e.f.SyscallConn()
	}
	if err != nil {
		e.f.Close()
		unix.Close(fds[1])
		return nil, -1, fmt.Errorf("a signal: %w", err)
	}
	return e, fds[1], nil
}

// Signal wakes the client. It never blocks. Errors are ignored: if the buffer is full the client has signals to read, and a client that
// has disconnected needs none.
func (e *Event) Signal() {
	_ = e.raw.Control(func(fd uintptr) {
		_ = unix.Sendto(int(fd), signal[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	})
}

var signal = [8]byte{1}

// Close closes the daemon's end. The client's end is readable from then on, with end of file.
func (e *Event) Close() { e.f.Close() }

// WaitEvent is called by the client. It waits for a signal and takes all that have arrived. It returns io.EOF after the daemon has closed
// its end.
func WaitEvent(raw syscall.RawConn) error {
	var bad error
	err := raw.Read(func(fd uintptr) bool {
		var b [8]byte
		for got := false; ; {
			n, err := unix.Read(int(fd), b[:])
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return got
			case err != nil:
				bad = os.NewSyscallError("read", err)
				return true
			case n == 0:
				if !got {
					bad = io.EOF
				}
				return true
			default:
				got = true
			}
		}
	})
	return errors.Join(err, bad)
}

// Doorbell is the daemon's end of a client's signal.
type Doorbell struct {
	f     *os.File
	raw   syscall.RawConn
	ended atomic.Bool
}

// NewDoorbell makes a doorbell. The descriptor is the client's, an eventfd.
func NewDoorbell() (*Doorbell, int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, -1, fmt.Errorf("eventfd: %w", err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("eventfd: %w", err)
	}
	d := &Doorbell{f: os.NewFile(uintptr(own), "doorbell")}
	if d.raw, err = d.f.SyscallConn(); err == nil {
		if err = take(uintptr(own)); err == unix.EAGAIN { // expected: it checks that the kernel supports RWF_NOWAIT
			return d, fd, nil
		}
	}
	d.f.Close()
	unix.Close(fd)
	return nil, -1, fmt.Errorf("reading an eventfd without waiting: %w", err)
}

// take reads the counter. It returns EAGAIN instead of blocking, even if the client has cleared O_NONBLOCK.
func take(fd uintptr) error {
	var b [8]byte
	for {
		_, err := unix.Preadv2(int(fd), [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
		if err != unix.EINTR {
			return err
		}
	}
}

var past = time.Unix(1, 0)

// Wait returns when the client has rung since the last call, or Wake was called. After End it returns an error.
func (d *Doorbell) Wait() error {
	var bad error
	err := d.raw.Read(func(fd uintptr) bool {
		bad = take(fd)
		return bad != unix.EAGAIN
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(err, bad)
	}
	d.f.SetReadDeadline(time.Time{}) // calls of Wake before this are done with: the caller looks for work now
	if d.ended.Load() {
		d.f.SetReadDeadline(past)
		return err
	}
	return nil
}

// Wake makes one call of Wait return, now or later.
func (d *Doorbell) Wake() { d.f.SetReadDeadline(past) }

// End makes every call of Wait return an error.
func (d *Doorbell) End() {
	d.ended.Store(true)
	d.f.SetReadDeadline(past)
}

// Close closes the descriptor. It must be called after End, when no goroutine is in Wait.
func (d *Doorbell) Close() { d.f.Close() }

// RingDoorbell is called by the client. It blocks only if the client itself has cleared O_NONBLOCK and filled the counter.
func RingDoorbell(fd int) { _, _ = unix.Write(fd, signal[:]) }
