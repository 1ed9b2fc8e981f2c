package fs

import (
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/ext4"
)

// READ and WRITE of a transport: the controller moves file data to and from the payload of the request, and nothing is copied, where the payload is
// pinned memory and the file's blocks begin where the request does. They are the same loads and stores as those of go-fuse's requests.

var _ = (exchange.Data)((*rawFS)(nil))

// ReadPayload is a READ of a transport.
func (r *rawFS) ReadPayload(in *fuse.ReadIn, p *exchange.Payload) (int, fuse.Status) {
	n, errno := r.srv.use(in.NodeId)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	defer n.done()
	size, errno := n.load(in, contentOf(p, in.Size))
	return size, fuse.Status(errno)
}

// WritePayload is a WRITE of a transport.
func (r *rawFS) WritePayload(in *fuse.WriteIn, p *exchange.Payload) (uint32, fuse.Status) {
	n, errno := r.srv.use(in.NodeId)
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	defer n.done()
	done, errno := n.write(in, contentOf(p, in.Size))
	return done, fuse.Status(errno)
}

// contentOf is the first size bytes of a payload.
func contentOf(p *exchange.Payload, size uint32) ext4.Content {
	in, _ := p.Of.(*ext4.Payload)
	return ext4.Content{Bytes: p.Memory[:size], In: in}
}

// payloads are those of the mount's transport.
type payloads struct {
	*ext4.Payloads
	pinned  atomic.Int32 // how many are in pinned memory
	reached atomic.Bool  // the kernel reaches such memory
}

func (p *payloads) open(vol *ext4.FS) {
	p.Payloads = vol.Payloads()
	p.pinned.Store(0)
	p.reached.Store(false)
}

// alloc pins a payload. nil: there is no more pinned memory for payloads, or none that the kernel can use. That is tried until it can: all of a mount's is of one kind, and what is
// tried is resident from then on, 2 MiB at once.
func (p *payloads) alloc(size int) *exchange.Payload {
	m, err := p.Alloc(size)
	if err != nil {
		return nil
	}
	b := m.Bytes()
	if len(b) < size || !p.reached.Load() && !reachable(b[:size]) {
		m.Release()
		return nil
	}
	p.reached.Store(true)
	p.pinned.Add(1)
	return &exchange.Payload{Memory: b[:size], Of: m, Free: m.Release}
}

// reachable says whether the kernel can move the bytes of a request to memory: not to a device's, for one. It tries, in the way in which it
// does that for a ring, for both ends. Where it may not try, the memory counts as unreachable. Tests have another answer.
var reachable = func(b []byte) bool {
	for _, at := range []int{0, len(b) - 1} {
		var one [1]byte
		local, remote := []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&b[at])), Len: 1}}
		if n, err := unix.ProcessVMWritev(unix.Getpid(), local, remote, 0); n != 1 || err != nil {
			return false
		}
	}
	return true
}
