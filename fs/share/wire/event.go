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

// A signal between a client and the daemon goes one way, and the daemon can never be made to wait by it.
//
// An eventfd would be one open file for both: who has it can clear O_NONBLOCK and fill the counter, and whoever writes to it
// then waits for ever. A pipe has a lock that a reader holds while it copies to memory, which may be memory that
// never comes. A pair of sockets has two open files: the flags of each are its own, and sending does not touch a lock of the
// receiver's that outlasts a copy. What is sent asks for MSG_DONTWAIT all the same.
//
// The other way, from the client, is an eventfd after all, for nobody can pass descriptors by one. The daemon reads it with
// RWF_NOWAIT, which does not depend on the flags of the open file.

// Event is the daemon's end of a signal to a client. It may be used from any goroutine, also while it is closed.
type Event struct {
	f   *os.File
	raw syscall.RawConn
}

// eventBuffer is what may be on its way in a signal's socket, in bytes as the kernel counts them, which makes it a few signals: the
// smallest that Linux allows.
const eventBuffer = 1

// NewEvent makes a signal, and the client's end of it: of that 8 bytes can be read for each signal, as of an eventfd.
func NewEvent() (*Event, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	// Nothing comes back by it, descriptors above all: who closes a socket closes those that wait in it.
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

// Signal wakes the client. It waits for nothing: a client that has signals left is awake, one that has gone needs none.
func (e *Event) Signal() {
	_ = e.raw.Control(func(fd uintptr) {
		_ = unix.Sendto(int(fd), signal[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	})
}

var signal = [8]byte{1}

// Close ends the signal; the client's end is readable from then on, and says that it is at its end.
func (e *Event) Close() { e.f.Close() }

// Heard is the client's: it waits for a signal and takes all that there are. The end of the daemon, or of what signals, is io.EOF.
func Heard(raw syscall.RawConn) error {
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

// NewDoorbell makes one, and the client's descriptor of it, an eventfd.
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
		if err = take(uintptr(own)); err == unix.EAGAIN { // as it should: a kernel that cannot must not find out later
			return d, fd, nil
		}
	}
	d.f.Close()
	unix.Close(fd)
	return nil, -1, fmt.Errorf("reading an eventfd without waiting: %w", err)
}

// take reads the counter, and says EAGAIN instead of waiting, whatever the client has made of the eventfd's flags.
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

// Wait returns when the client has rung since the last time, or Rouse was called; and with an error after End.
func (d *Doorbell) Wait() error {
	var bad error
	err := d.raw.Read(func(fd uintptr) bool {
		bad = take(fd)
		return bad != unix.EAGAIN
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(err, bad)
	}
	d.f.SetReadDeadline(time.Time{}) // whoever roused before this is heard: the caller looks after it
	if d.ended.Load() {
		d.f.SetReadDeadline(past)
		return err
	}
	return nil
}

// Rouse makes one Wait return, now or later.
func (d *Doorbell) Rouse() { d.f.SetReadDeadline(past) }

// End makes every Wait return an error.
func (d *Doorbell) End() {
	d.ended.Store(true)
	d.f.SetReadDeadline(past)
}

// Close gives the descriptor back, after End and after those who waited have gone.
func (d *Doorbell) Close() { d.f.Close() }

// Knock signals a doorbell: it is the client's, whose own business it is if it has made that wait.
func Knock(fd int) { _, _ = unix.Write(fd, signal[:]) }
