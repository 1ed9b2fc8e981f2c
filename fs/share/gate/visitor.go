package gate

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// The road of a request:
//
//	1  the client's message is received, with whatever descriptors it carries
//	2  it goes on to the daemon with those that may pass, whose copies here are closed
//	3  what is foreign is closed, however long that takes (parallel to 4; no other request of the client begins before)
//	4  the daemon's reply goes to the client, after 2 has ended: then no copy here keeps the mount busy

const (
	maxPassed    = 253 // descriptors in one message: SCM_MAX_FD
	replyTimeout = 30 * time.Second
)

// visitor is a client. up and down are two goroutines.
type visitor struct {
	p              *process
	uid            uint32
	client, daemon *wire.Conn
	passing        sync.Mutex    // held while copies of what was passed on are open here, and while a reply goes by
	answered       chan struct{} // a reply went by
	gone           chan struct{} // down has ended
}

// visit relays until one side has gone.
func (p *process) visit(uid uint32, client, daemon int) {
	c, err := connOf(client)
	if err != nil {
		wire.CloseAll([]int{daemon})
		return
	}
	d, err := connOf(daemon)
	if err != nil {
		p.apart(uid, func() { c.Close() })
		return
	}
	v := &visitor{p: p, uid: uid, client: c, daemon: d, answered: make(chan struct{}, 1), gone: make(chan struct{})}
	go v.down()
	v.up()
	_ = d.CloseWrite() // the daemon sees the end, answers what it has, and closes
	<-v.gone
	d.Close()
	p.apart(uid, func() { c.Close() }) // with what nobody received
}

// up takes requests to the daemon.
func (v *visitor) up() {
	// One byte more than a message: the daemon is to see that it is too long.
	buf, oob := make([]byte, wire.MaxMessage+1), make([]byte, unix.CmsgSpace(4*maxPassed))
	for first := true; ; first = false {
		n, oobn, flags, _, err := v.client.ReadMsgUnix(buf, oob)
		rights, bad := wire.ParseRights(oob[:oobn])
		if err != nil || bad != nil || flags&unix.MSG_CTRUNC != 0 || n == 0 && len(rights) == 0 {
			v.p.close(v.uid, rights)
			return
		}
		if why := v.p.refusal(v.uid); why != nil && first {
			status, text := wire.Failure(why, unix.EBUSY)
			v.client.SetWriteDeadline(time.Now().Add(replyTimeout))
			_ = v.client.Send(wire.Encode(wire.Header{Type: wire.THello | wire.Reply, Status: status}, text))
			v.p.close(v.uid, rights)
			return
		}
		pass, own, foreign := v.sort(rights)
		v.passing.Lock()
		err = v.daemon.Send(buf[:n], pass...)
		wire.CloseAll(own)
		v.passing.Unlock()
		if !v.p.close(v.uid, foreign) || err != nil {
			return
		}
		select {
		case <-v.answered:
		case <-v.gone:
			return
		}
	}
}

// sort tells what may go on from what is foreign. One descriptor too many is enough for the daemon to refuse the message.
func (v *visitor) sort(rights []int) (pass, own, foreign []int) {
	for _, fd := range rights {
		to := v.p.null
		if v.p.harmless(fd) {
			own, to = append(own, fd), fd
		} else {
			foreign = append(foreign, fd)
		}
		if len(pass) <= wire.MaxRights {
			pass = append(pass, to)
		}
	}
	return pass, own, foreign
}

// harmless says whether closing a descriptor waits for nobody: it is of the mount, a memfd, or no file of a file system at all
// but a device or its memory. No question here is one that a file system answers: only memfds have seals, and with
// AT_STATX_DONT_SYNC FUSE says what it knows, or EACCES.
func (p *process) harmless(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil {
		return true
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_TYPE, &st); err != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT // 0: what has no inode of its own, as DMA-BUFs
	return unix.Mkdev(st.Dev_major, st.Dev_minor) == p.dev || kind == 0 || kind == unix.S_IFCHR
}

// down takes replies to the client.
func (v *visitor) down() {
	defer close(v.gone)
	buf, oob := make([]byte, wire.MaxMessage), make([]byte, unix.CmsgSpace(4*wire.MaxRights))
	for {
		n, oobn, _, _, err := v.daemon.ReadMsgUnix(buf, oob)
		rights, _ := wire.ParseRights(oob[:oobn])
		if err != nil || n == 0 {
			wire.CloseAll(rights)
			break
		}
		v.passing.Lock() // up has closed its copies
		v.client.SetWriteDeadline(time.Now().Add(replyTimeout))
		err = v.client.Send(buf[:n], rights...)
		v.passing.Unlock()
		wire.CloseAll(rights)
		if err != nil {
			break
		}
		select {
		case v.answered <- struct{}{}:
		default:
		}
	}
	v.client.SetReadDeadline(time.Unix(1, 0)) // up waits for no more
}
