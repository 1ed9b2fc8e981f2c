package gate

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// The road of a request:
//
//	1  the client's message is received, with whatever descriptors it carries
//	2  files of the mount are flushed: the kernel writes back what it has of them, as for a program that closes them
//	3  the message goes on to the daemon, with memory, whose copies here are closed, and with what is to be known of files
//	4  what is foreign is closed, however long that takes (parallel to 5; no other request of the client begins before)
//	5  before the daemon's reply goes to the client the files of the mount are closed: then nothing here keeps the mount busy

const (
	maxPassed    = 253 // descriptors in one message: SCM_MAX_FD
	replyTimeout = 30 * time.Second
)

// visitor is a client. up and down are two goroutines.
type visitor struct {
	p              *process
	uid            uint32
	client, daemon *wire.Conn
	answered       chan struct{} // a reply went by
	gone           chan struct{} // down has ended

	mu  sync.Mutex
	own []int // files of the mount that the request at the daemon has. Protected by mu
}

// visit relays until one side has gone.
func (p *process) visit(uid uint32, client *wire.Conn) {
	daemon, end, err := pair()
	if err == nil {
		err = p.announce(uid, end)
		end.Close()
		if err != nil {
			daemon.Close()
		}
	}
	if err != nil {
		p.dismiss(uid, client.UnixConn)
		return
	}
	v := &visitor{p: p, uid: uid, client: client, daemon: daemon, answered: make(chan struct{}, 1), gone: make(chan struct{})}
	go v.down()
	v.up()
	_ = daemon.CloseWrite() // the daemon sees the end, answers what it has, and closes
	<-v.gone
	daemon.Close()
	v.letGo()
	p.dismiss(uid, client.UnixConn)
}

// up takes requests to the daemon.
func (v *visitor) up() {
	// One byte more than a message: the daemon is to see that it is too long.
	buf, oob := make([]byte, wire.MaxMessage+1), make([]byte, unix.CmsgSpace(4*maxPassed))
	for first := true; ; first = false {
		if why := v.p.refusal(v.uid); why != nil { // before anything is received that might have to be closed
			if first {
				refuse(v.client, why, time.Now().Add(replyTimeout))
			}
			return
		}
		n, oobn, flags, _, err := v.client.ReadMsgUnix(buf, oob)
		rights, bad := wire.ParseRights(oob[:oobn])
		if err != nil || bad != nil || flags&unix.MSG_CTRUNC != 0 || n == 0 && len(rights) == 0 {
			v.p.close(v.uid, rights)
			return
		}
		tell, pass, foreign := v.sort(rights)
		// How long a flush takes is the client's business, which wrote the bytes: it waits for the mount, and nobody for it.
		flush(tell, v.files())
		err = v.daemon.Send(append(encodeHead(tell), buf[:n]...), pass...)
		wire.CloseAll(pass)
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

// sort tells what may go on from what stays and what is foreign. One descriptor too many is enough for the daemon to refuse the
// message. Files of the mount are the visitor's from here on.
func (v *visitor) sort(rights []int) (tell []Right, pass, foreign []int) {
	for _, fd := range rights {
		r := v.p.look(fd)
		extra := len(tell) > wire.MaxRights
		switch {
		case r.Sort == Own:
			v.mu.Lock()
			v.own = append(v.own, fd)
			v.mu.Unlock()
			if len(tell) == 0 {
				r.Name, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			}
		case r.Sort == Memory && !extra:
			pass = append(pass, fd)
		default: // of memory too much as well, which closes like this
			foreign = append(foreign, fd)
		}
		if !extra {
			tell = append(tell, r)
		}
	}
	return tell, pass, foreign
}

func (v *visitor) files() []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.own
}

// flush has the kernel write back what it has of the mount's files, as closing them would, of which a copy is closed for that.
func flush(tell []Right, own []int) {
	if len(tell) > wire.MaxRights {
		return // the message will be refused
	}
	for _, fd := range own {
		if twin, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			unix.Close(twin)
		}
	}
}

// letGo closes the mount's files. That waits for the mount, if anything was written meanwhile.
func (v *visitor) letGo() {
	v.mu.Lock()
	own := v.own
	v.own = nil
	v.mu.Unlock()
	wire.CloseAll(own)
}

// look says what a descriptor is of. No question here is one that a file system answers: only memfds have seals, and with
// AT_STATX_DONT_SYNC FUSE says what it knows, or EACCES. Memory is what closing waits for nobody: a memfd, or a GPU's.
func (p *process) look(fd int) Right {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil {
		return Right{Sort: Memory, FD: fd}
	}
	foreign := Right{Sort: Foreign, FD: -1}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_TYPE, &st); err != nil {
		return foreign
	}
	if unix.Mkdev(st.Dev_major, st.Dev_minor) == p.dev {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return foreign
		}
		return Right{Sort: Own, FD: -1, Flags: flags, Inode: st.Ino, Mode: uint32(st.Mode)}
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR && p.gpus[st.Rdev_major]:
	case kind == 0 || kind == unix.S_IFREG:
		// A DMA-BUF has no inode of a file system's; what has none either, and is neither, could be anything.
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil || !strings.HasPrefix(name, "/dmabuf:") || st.Dev_major != 0 || kind != 0 {
			return foreign
		}
	default:
		return foreign
	}
	return Right{Sort: Memory, FD: fd}
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
		v.letGo()
		v.client.SetWriteDeadline(time.Now().Add(replyTimeout))
		err = v.client.Send(buf[:n], rights...)
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
