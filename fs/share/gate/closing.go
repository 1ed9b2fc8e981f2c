package gate

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// close closes descriptors, which may block. It returns false if that takes longer than closeTimeout.
func (p *process) close(uid uint32, fds []int) bool {
	if len(fds) == 0 {
		return true
	}
	return p.withTimeout(uid, func() { wire.CloseAll(fds) })
}

// withTimeout runs f, which may never return, and reports whether it returned within closeTimeout.
func (p *process) withTimeout(uid uint32, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	}
	p.count(uid, 1)
	go func() { <-done; p.count(uid, -1) }()
	return false
}

// count adds n to the slow closings of a user. If that leaves room, a socket that could not be closed is closed.
func (p *process) count(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slowAll += n
	if p.slow[uid] += n; p.slow[uid] == 0 {
		delete(p.slow, uid)
	}
	if left := p.unclosed[uid]; n < 0 && len(left) > 0 && p.slow[uid] < maxSlow {
		u := left[len(left)-1]
		if p.unclosed[uid] = left[:len(left)-1]; len(left) == 1 {
			delete(p.unclosed, uid)
		}
		go p.withTimeout(uid, func() { u.Close() })
	}
}

// refusal returns an error if the user must not be served because of slow closings.
func (p *process) refusal(uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.slow[uid] >= maxSlow:
		return fmt.Errorf("%d descriptors that you passed before are not closed yet, for their file systems do not answer: %w", p.slow[uid], unix.EBUSY)
	case p.slowAll >= maxSlowAll:
		return fmt.Errorf("%d descriptors that clients passed are not closed yet, for their file systems do not answer: %w", p.slowAll, unix.EBUSY)
	}
	return nil
}

// disconnect ends a connection. Closing its socket also closes the descriptors in its queue, which may block. If the user has maxSlow slow
// closings already, such a socket is kept open until one of them ends. It takes a descriptor then, but no thread.
func (p *process) disconnect(uid uint32, u *net.UnixConn) {
	if !rightsWait(u) {
		u.Close()
		return
	}
	if p.refusal(uid) != nil {
		p.mu.Lock()
		p.unclosed[uid] = append(p.unclosed[uid], u)
		p.mu.Unlock()
		return
	}
	go p.withTimeout(uid, func() { u.Close() })
}

// maxUnread is how many unread messages rightsWait looks at.
const maxUnread = 1024

// rightsWait reports whether there are descriptors in a socket's queue. It shuts the socket down, so that none can be added.
func rightsWait(u *net.UnixConn) (wait bool) {
	raw, err := u.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR)
		// Messages carry the sender's credentials then, which tells an empty message from the end of the connection.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) != nil {
			wait = true
			return
		}
		room := make([]byte, unix.CmsgSpace(unix.SizeofUcred)) // no room for descriptors: MSG_CTRUNC reports them
		for range maxUnread {
			var b [1]byte
			// MSG_PEEK leaves the descriptors in the queue.
			n, oobn, flags, _, err := unix.Recvmsg(int(fd), b[:], room, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n == 0 && oobn == 0 {
				return // there is nothing
			}
			if wait = flags&unix.MSG_CTRUNC != 0; wait {
				return
			}
			_, _, _, _, _ = unix.Recvmsg(int(fd), b[:], nil, unix.MSG_DONTWAIT)
		}
		wait = true
	})
	return wait || err != nil
}
