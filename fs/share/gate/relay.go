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

// A request on its way through the gate:
//
//  1. The client's message is received, with its descriptors.  up
//  2. Files of the mount are flushed: the kernel writes back their dirty pages, as if a program closed them.  flush
//  3. The message is sent to the daemon, behind a head that describes the descriptors. Memory is passed on, and closed here.
//  4. Foreign descriptors are closed, in parallel to 5. The client's next request is not read before that.
//  5. Before the daemon's reply goes to the client, the files of the mount are closed here, so that they do not keep the mount busy.  down
//
// Nobody receives from a client that waits, so a watch looks whether it has gone. Then the daemon is told by the end of its connection. A client that only
// sends no more still gets its reply.

const (
	maxPassed    = 253 // descriptors in one message: SCM_MAX_FD
	replyTimeout = 30 * time.Second
)

// relay passes messages between a client and the daemon. up and down are two goroutines.
type relay struct {
	p              *process
	uid            uint32
	client, daemon *wire.Conn
	answered       chan struct{} // a reply was sent to the client
	gone           chan struct{} // closed when down has ended
	left           chan struct{} // closed when the client has gone while a request was under way

	mu  sync.Mutex
	own []int // files of the mount that came with the present request. Protected by mu
}

// serve relays messages until the client or the daemon closes its end.
func (p *process) serve(uid uint32, client *wire.Conn) {
	daemon, end, err := pair()
	if err == nil {
		err = p.sendConn(uid, end)
		end.Close()
		if err != nil {
			daemon.Close()
		}
	}
	if err != nil {
		p.disconnect(uid, client.UnixConn)
		return
	}
	r := &relay{p: p, uid: uid, client: client, daemon: daemon, answered: make(chan struct{}, 1), gone: make(chan struct{}), left: make(chan struct{})}
	go r.down()
	r.up()
	_ = daemon.CloseWrite() // the daemon sees the end, replies to the present request, and closes
	<-r.gone
	daemon.Close()
	r.closeFiles()
	p.disconnect(uid, client.UnixConn)
}

// up passes requests to the daemon.
func (r *relay) up() {
	// One byte more than a message, so that the daemon sees that a message is too long.
	buf, oob := make([]byte, wire.MaxMessage+1), make([]byte, unix.CmsgSpace(4*maxPassed))
	watch := wire.NewWatch(r.client.UnixConn, 0, sync.OnceFunc(func() {
		close(r.left)
		_ = r.daemon.CloseWrite() // here, for a flush may wait for the device, too
	}))
	for first := true; ; first = false {
		if why := r.p.refusal(r.uid); why != nil { // before descriptors are received that would have to be closed
			if first {
				refuse(r.client, why, time.Now().Add(replyTimeout))
			}
			return
		}
		n, oobn, flags, _, err := r.client.ReadMsgUnix(buf, oob)
		rights, bad := wire.ParseRights(oob[:oobn])
		if err != nil || bad != nil || flags&unix.MSG_CTRUNC != 0 || n == 0 && len(rights) == 0 {
			r.p.close(r.uid, rights)
			return
		}
		watch.Begin()
		described, pass, foreign := r.sort(rights)
		// A flush waits for the mount to write the client's bytes. Only the client waits for it.
		flush(described, r.files())
		err = r.daemon.Send(append(encodeHead(described), buf[:n]...), pass...)
		wire.CloseAll(pass)
		ok := r.p.close(r.uid, foreign) && err == nil
		if ok {
			select {
			case <-r.answered:
			case <-r.gone:
				ok = false
			case <-r.left:
				ok = false
			}
		}
		watch.End()
		if !ok {
			return
		}
	}
}

// sort classifies descriptors. It returns their description for the daemon, those to pass on, and those to close. Of descriptors beyond
// wire.MaxRights only the first is described, which makes the daemon refuse the message. The relay keeps files of the mount.
func (r *relay) sort(rights []int) (described []Right, pass, foreign []int) {
	for _, fd := range rights {
		d := r.p.classify(fd)
		extra := len(described) > wire.MaxRights
		switch {
		case d.Sort == Own:
			r.mu.Lock()
			r.own = append(r.own, fd)
			r.mu.Unlock()
			if len(described) == 0 {
				d.Name, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			}
		case d.Sort == Memory && !extra:
			pass = append(pass, fd)
		default: // also memory beyond wire.MaxRights
			foreign = append(foreign, fd)
		}
		if !extra {
			described = append(described, d)
		}
	}
	return described, pass, foreign
}

func (r *relay) files() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own
}

// flush makes the kernel write back dirty pages of the mount's files. It closes a duplicate of each, which flushes.
func flush(described []Right, own []int) {
	if len(described) > wire.MaxRights {
		return // the message will be refused
	}
	for _, fd := range own {
		if dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			unix.Close(dup)
		}
	}
}

// closeFiles closes the mount's files. That waits for the mount if bytes were written meanwhile.
func (r *relay) closeFiles() {
	r.mu.Lock()
	own := r.own
	r.own = nil
	r.mu.Unlock()
	wire.CloseAll(own)
}

// classify returns the sort of a descriptor, without a request to its file system: only memfds have seals, and with AT_STATX_DONT_SYNC
// the kernel's FUSE client answers from its cache, or with EACCES. Memory is a memfd or a GPU's memory, whose close(2) never blocks.
func (p *process) classify(fd int) Right {
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
		// A DMA-BUF has no file type and a name of its own. Any other file without a type is foreign.
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil || !strings.HasPrefix(name, "/dmabuf:") || st.Dev_major != 0 || kind != 0 {
			return foreign
		}
	default:
		return foreign
	}
	return Right{Sort: Memory, FD: fd}
}

// down passes replies to the client.
func (r *relay) down() {
	defer close(r.gone)
	buf, oob := make([]byte, wire.MaxMessage), make([]byte, unix.CmsgSpace(4*wire.MaxRights))
	for {
		n, oobn, _, _, err := r.daemon.ReadMsgUnix(buf, oob)
		rights, _ := wire.ParseRights(oob[:oobn])
		if err != nil || n == 0 {
			wire.CloseAll(rights)
			break
		}
		r.closeFiles()
		r.client.SetWriteDeadline(time.Now().Add(replyTimeout))
		err = r.client.Send(buf[:n], rights...)
		wire.CloseAll(rights)
		if err != nil {
			break
		}
		select {
		case r.answered <- struct{}{}:
		default:
		}
	}
	r.client.SetReadDeadline(time.Unix(1, 0)) // ends up's read
}
