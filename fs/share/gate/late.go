package gate

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// close closes descriptors that may block, and waits for that as long as it has patience: false if that was too short.
func (p *process) close(uid uint32, fds []int) bool {
	if len(fds) == 0 {
		return true
	}
	return p.apart(uid, func() { wire.CloseAll(fds) })
}

// apart runs f, which may never return, and says whether it did within patience.
func (p *process) apart(uid uint32, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	t := time.NewTimer(patience)
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

func (p *process) count(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lateAll += n
	if p.late[uid] += n; p.late[uid] == 0 {
		delete(p.late, uid)
	}
	if left := p.parked[uid]; n < 0 && len(left) > 0 && p.late[uid] < maxLate {
		u := left[len(left)-1]
		if p.parked[uid] = left[:len(left)-1]; len(left) == 1 {
			delete(p.parked, uid)
		}
		go p.apart(uid, func() { u.Close() })
	}
}

// refusal is why a user is not served: nil where there is no reason.
func (p *process) refusal(uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.late[uid] >= maxLate:
		return fmt.Errorf("%d descriptors that you passed before are not closed yet, for their file systems do not answer: %w", p.late[uid], unix.EBUSY)
	case p.lateAll >= maxLateAll:
		return fmt.Errorf("%d descriptors that clients passed are not closed yet, for their file systems do not answer: %w", p.lateAll, unix.EBUSY)
	}
	return nil
}

// dismiss ends a connection. Closing its socket closes descriptors that wait in it, which nobody has received. Of a user who has
// threads enough waiting such a socket is kept instead, until one of them is free: it takes a descriptor, and no thread.
func (p *process) dismiss(uid uint32, u *net.UnixConn) {
	if !rightsWait(u) {
		u.Close()
		return
	}
	if p.refusal(uid) != nil {
		p.mu.Lock()
		p.parked[uid] = append(p.parked[uid], u)
		p.mu.Unlock()
		return
	}
	go p.apart(uid, func() { u.Close() })
}

// maxUnread is how many messages of a client that goes are looked at.
const maxUnread = 1024

// rightsWait says whether a socket has descriptors in it. None can come afterwards.
func rightsWait(u *net.UnixConn) (wait bool) {
	raw, err := u.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR)
		// With the sender's credentials an empty message, which is one, is not taken for the end, which has none.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) != nil {
			wait = true
			return
		}
		room := make([]byte, unix.CmsgSpace(unix.SizeofUcred)) // and no more, so that descriptors are told of by MSG_CTRUNC
		for range maxUnread {
			var b [1]byte
			// A look at the message copies its descriptors to nowhere, and does not end them: the message has them still.
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
