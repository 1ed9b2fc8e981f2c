package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is one end of a connection. One goroutine sends at a time, one receives.
type Conn struct {
	*net.UnixConn
	in  [MaxMessage + 1]byte
	oob [256]byte // room for more than MaxRights descriptors, so that excess ones are received and closed
}

// Dial connects to a daemon's socket.
func Dial(path string) (*Conn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &Conn{UnixConn: c}, nil
}

// Send sends a message with rights. The caller still has to close them.
func (c *Conn) Send(message []byte, rights ...int) error {
	var oob []byte
	if len(rights) > 0 {
		oob = unix.UnixRights(rights...)
	}
	n, _, err := c.WriteMsgUnix(message, oob, nil)
	if err == nil && n != len(message) {
		err = fmt.Errorf("sent %d of %d bytes", n, len(message))
	}
	return err
}

// ErrNoDescriptors says that the process had no descriptor left for one that came with a message. It has none of them.
var ErrNoDescriptors = fmt.Errorf("the process has no descriptors left for those of a message: %w", syscall.EMFILE)

// Receive waits for a message. The body is valid until the next call. Without an error the caller must close the rights. At the end of the
// connection the error is net.ErrClosed. With ErrNoDescriptors header and body are valid.
func (c *Conn) Receive() (h Header, body []byte, rights []int, err error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(c.in[:], c.oob[:])
	if err != nil {
		return h, nil, nil, err
	}
	rights, err = ParseRights(c.oob[:oobn])
	if err == nil && flags&unix.MSG_TRUNC != 0 {
		err = fmt.Errorf("%w: more than %d bytes", ErrMalformed, MaxMessage)
	}
	if err == nil && len(rights) > MaxRights {
		err = fmt.Errorf("%w: %d descriptors", ErrMalformed, len(rights))
	}
	if err == nil && n == 0 && len(rights) == 0 && flags&unix.MSG_CTRUNC == 0 {
		err = net.ErrClosed // the end of the connection
	}
	if err == nil {
		h, body, err = Decode(c.in[:n])
	}
	switch {
	case err != nil:
		CloseAll(rights)
		return h, nil, nil, err
	case flags&unix.MSG_CTRUNC != 0: // oob has room for them
		CloseAll(rights)
		return h, body, nil, ErrNoDescriptors
	}
	return h, body, rights, nil
}

// ParseRights returns the descriptors in control messages. With an error it returns those that it found.
func ParseRights(oob []byte) (all []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	for i := range messages {
		if n := len(messages[i].Data); n%4 != 0 { // ParseUnixRights panics
			err = fmt.Errorf("%w: descriptors in %d bytes", ErrMalformed, n)
			continue
		}
		fds, bad := unix.ParseUnixRights(&messages[i])
		if bad != nil {
			err = fmt.Errorf("%w: %w", ErrMalformed, bad)
			continue
		}
		all = append(all, fds...)
	}
	return all, err
}

// CloseAll closes descriptors. It skips negative ones.
func CloseAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// Peer returns the user ID of the process at the other end of a connection.
func Peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if err1 := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err1 != nil {
		return 0, err1
	}
	if err != nil {
		return 0, fmt.Errorf("who asks cannot be found out: %w", Forbidden(os.NewSyscallError("getsockopt", err)))
	}
	return cred.Uid, nil
}

// Forbidden adds to an error what to do about it, if it is that of a system call that no kernel of today refuses, and a container's filter may.
func Forbidden(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)) {
		return fmt.Errorf("%w (a container's seccomp filter forbids it, most likely: let the container use %s)", err, call.Syscall)
	}
	return err
}

// Call sends a request and waits for its reply. reply is a pointer to one of the structs of message.go, or nil. The reply must have want
// rights, which the caller must close. If the daemon refuses the request the error is an *Error. With ErrNoDescriptors what the reply gave was
// given back.
func (c *Conn) Call(t Type, tag uint32, request, reply any, want int, rights ...int) ([]int, error) {
	sent := c.Send(Encode(Header{Type: t, Tag: tag}, request), rights...)
	if sent != nil && (t != THello || !errors.Is(sent, syscall.EPIPE)) {
		return nil, sent
	}
	h, body, got, err := c.Receive()
	if sent != nil && (err != nil || h.Status == 0) {
		CloseAll(got)
		return nil, sent // else the Hello was refused before it was read, and the reply has the reason
	}
	lost := errors.Is(err, ErrNoDescriptors)
	if err != nil && !lost {
		return nil, err
	}
	switch {
	case h.Type != t|Reply || h.Tag != tag && (t != THello || h.Status == 0): // a Hello may be refused before it was read
		err = fmt.Errorf("%w: a reply of type %#x and tag %d to a request of type %#x and tag %d", ErrMalformed, h.Type, h.Tag, t, tag)
	case h.Status != 0:
		err = &Error{syscall.Errno(h.Status), string(body)}
	case lost:
		err = c.giveBack(t, tag, body)
	case len(got) != want:
		err = fmt.Errorf("%w: %d descriptors in a reply, want %d", ErrMalformed, len(got), want)
	case reply != nil:
		err = Body(body, reply)
	}
	if err != nil {
		CloseAll(got)
		return nil, err
	}
	return got, nil
}

// giveBack releases the handle that a reply gave whose rights could not be received. It returns ErrNoDescriptors, or the connection's end.
func (c *Conn) giveBack(t Type, tag uint32, body []byte) error {
	if t != TMap && t != TRing || len(body) < 4 {
		return ErrNoDescriptors
	}
	handle := binary.LittleEndian.Uint32(body) // their replies begin with it
	_, err := c.Call(TRelease, tag, &Release{Handle: handle}, nil, 0)
	var refused *Error
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	return ErrNoDescriptors
}
