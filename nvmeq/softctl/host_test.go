package softctl

import (
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// memory is mapped between two pages that cannot be touched: what strays out of it crashes the test.
type memory struct {
	b      []byte
	hidden bool // has no host view
}

func newMemory(t testing.TB, n int) *memory {
	all, err := unix.Mmap(-1, 0, n+2*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	require.NoError(t, unix.Mprotect(all[4096:4096+n], unix.PROT_READ|unix.PROT_WRITE))
	t.Cleanup(func() { unix.Munmap(all) })
	return &memory{b: all[4096 : 4096+n : 4096+n]}
}

func (m *memory) Kind() gpu.MemKind { return gpu.HostMapped }
func (m *memory) Size() int64       { return int64(len(m.b)) }
func (m *memory) Addr() gpu.Addr    { return 0 }
func (m *memory) Host() []byte {
	if m.hidden {
		return nil
	}
	return m.b
}
func (m *memory) Reach() gpu.Reach                          { return gpu.Reach{Owner: gpu.OwnerPages} }
func (m *memory) Export(gpu.ExportKind) (gpu.Export, error) { return gpu.Export{}, os.ErrInvalid }
func (m *memory) Close() error                              { return nil }

// raw is a submission queue entry as its 16 dwords.
type raw [16]uint32

func cmdOf(op uint8, nsid uint32) raw { return raw{0: uint32(op), 1: nsid} }

func (r raw) dw(i int, v uint32) raw { r[i] = v; return r }
func (r raw) cid(v uint16) raw       { return r.dw(0, r[0]&0xffff|uint32(v)<<16) }
func (r raw) prp(a, b uint64) raw {
	r[6], r[7], r[8], r[9] = uint32(a), uint32(a>>32), uint32(b), uint32(b>>32)
	return r
}

// rw is a Read, Write, Compare, Write Zeroes or Verify of n blocks.
func rw(op uint8, nsid uint32, slba uint64, n uint32) raw {
	return cmdOf(op, nsid).dw(10, uint32(slba)).dw(11, uint32(slba>>32)).dw(12, n-1)
}

// entry is a completion queue entry as its four dwords.
type entry [4]uint32

func (e entry) cid() uint16    { return uint16(e[3]) }
func (e entry) status() Status { return Status(e[3] >> 17) }
func (e entry) sqhd() uint16   { return uint16(e[2]) }
func (e entry) sqid() uint16   { return uint16(e[2] >> 16) }

// pair is the host's side of a queue pair.
type pair struct {
	id         uint16
	sq, cq     []byte
	sqAt, cqAt uint64
	size       uint32
	tail, head uint32
	phase      uint32
	cid        uint16
}

// host drives a controller as a driver would, with its own idea of every layout.
type host struct {
	t      testing.TB
	c      *Controller
	path   string
	mem    *memory
	base   uint64 // IOVA of mem
	used   int
	admin  *pair
	stride int64

	listMark int // memory beyond it is for PRP lists
}

const testSize = 8 << 20

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newImage(t testing.TB, size int64) string {
	p := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(p)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	return p
}

// newHost makes an image and a controller, maps 16 MiB, and does not enable.
func newHost(t testing.TB, opt Options) *host {
	return newHostOn(t, newImage(t, testSize), opt)
}

func newHostOn(t testing.TB, path string, opt Options) *host {
	if opt.Log == nil {
		opt.Log = quiet()
	}
	mem := newMemory(t, 16<<20) // goes after the controller, which may still complete a flush there
	c, err := Open(path, opt)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	h := &host{t: t, c: c, path: path, mem: mem, stride: 4 << opt.Stride}
	a, err := c.Map(h.mem, 0, h.mem.Size())
	require.NoError(t, err)
	h.base = uint64(a)
	return h
}

// alloc gives zeroed page-aligned memory and its IOVA.
func (h *host) alloc(n int) ([]byte, uint64) {
	n = (n + 4095) &^ 4095
	require.LessOrEqual(h.t, h.used+n, len(h.mem.b), "test memory used up")
	b := h.mem.b[h.used : h.used+n : h.used+n]
	clear(b)
	at := h.base + uint64(h.used)
	h.used += n
	return b, at
}

func (h *host) newPair(id uint16, size uint32) *pair {
	p := &pair{id: id, size: size, phase: 1}
	p.sq, p.sqAt = h.alloc(int(size) * 64)
	p.cq, p.cqAt = h.alloc(int(size) * 16)
	return p
}

const enableCC = 1 | 6<<16 | 4<<20

func (h *host) enable() *host {
	if h.admin == nil {
		h.admin = h.newPair(0, 32)
	} else {
		h.admin.tail, h.admin.head, h.admin.phase = 0, 0, 1
		clear(h.admin.cq)
	}
	h.c.Write32(0x24, (h.admin.size-1)|(h.admin.size-1)<<16)
	h.c.Write64(0x28, h.admin.sqAt)
	h.c.Write64(0x30, h.admin.cqAt)
	h.c.Write32(0x14, enableCC)
	require.Equal(h.t, uint32(1), h.c.Read32(0x1c)&3, "CSTS after enable")
	return h
}

// put writes an entry at the tail without ringing, and gives it a CID of its own.
func (h *host) put(p *pair, r raw) uint16 {
	p.cid++
	r = r.cid(p.cid)
	h.putRaw(p, r)
	return p.cid
}

func (h *host) putRaw(p *pair, r raw) {
	for i, v := range r {
		binary.LittleEndian.PutUint32(p.sq[int(p.tail)*64+4*i:], v)
	}
	p.tail = (p.tail + 1) % p.size
}

// ring stores the tail doorbell the way a lane does.
func (h *host) ring(p *pair) { h.store(0x1000+2*int64(p.id)*h.stride, p.tail) }

func (h *host) store(off int64, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&h.c.BAR()[off])), v)
}

// poll takes the next completion if there is one, and rings the head doorbell.
func (h *host) poll(p *pair) (entry, bool) {
	e, ok := h.peek(p)
	if ok {
		h.store(0x1000+(2*int64(p.id)+1)*h.stride, p.head)
	}
	return e, ok
}

// peek is poll without the doorbell.
func (h *host) peek(p *pair) (e entry, ok bool) {
	at := p.cq[p.head*16:]
	e[3] = atomic.LoadUint32((*uint32)(unsafe.Pointer(&at[12])))
	if e[3]>>16&1 != p.phase {
		return e, false
	}
	for i := range 3 {
		e[i] = binary.LittleEndian.Uint32(at[4*i:])
	}
	if p.head++; p.head == p.size {
		p.head, p.phase = 0, p.phase^1
	}
	return e, true
}

// do runs one command on p to its end.
func (h *host) do(p *pair, r raw) entry {
	h.t.Helper()
	cid := h.put(p, r)
	h.ring(p)
	h.c.Step(p.id)
	e, ok := h.poll(p)
	if (uint8(r[0]) == opFlush || h.c.Direct()) && p.id != 0 { // what a device is asked for by a ring ends later, too
		for end := time.Now().Add(time.Minute); !ok && time.Now().Before(end); e, ok = h.poll(p) {
			h.c.Step(p.id)
		}
		h.c.quiesce() // what the queue's goroutine did comes before what the test does next
	}
	require.True(h.t, ok, "no completion for opcode %#x", uint8(r[0]))
	require.Equal(h.t, cid, e.cid())
	require.Equal(h.t, p.id, e.sqid())
	require.Equal(h.t, p.tail, uint32(e.sqhd()))
	return e
}

func (h *host) adminDo(r raw) entry { h.t.Helper(); return h.do(h.admin, r) }

// require checks an admin command's status, More aside.
func (h *host) expect(want Status, p *pair, r raw) entry {
	h.t.Helper()
	e := h.do(p, r)
	require.Equal(h.t, want.String(), (e.status() &^ statusMore).String())
	require.Equal(h.t, want.failed(), e.status()&statusMore != 0, "More: an error log entry was made")
	return e
}

func createCQ(id uint16, size uint32, at uint64) raw {
	return cmdOf(0x05, 0).prp(at, 0).dw(10, uint32(id)|(size-1)<<16).dw(11, 1)
}

func createSQ(id uint16, size uint32, at uint64, cq uint16) raw {
	return cmdOf(0x01, 0).prp(at, 0).dw(10, uint32(id)|(size-1)<<16).dw(11, 1|uint32(cq)<<16)
}

// queue makes an I/O queue pair.
func (h *host) queue(id uint16, size uint32) *pair {
	h.t.Helper()
	p := h.newPair(id, size)
	h.expect(success, h.admin, createCQ(id, size, p.cqAt))
	h.expect(success, h.admin, createSQ(id, size, p.sqAt, id))
	return p
}

// ready is an enabled host with one I/O queue pair.
func ready(t testing.TB, opt Options) (*host, *pair) {
	h := newHost(t, opt).enable()
	return h, h.queue(1, 16)
}

// transfer gives the PRPs of n bytes at a page-aligned IOVA, making a list where one is needed.
func (h *host) transfer(at uint64, n int) (uint64, uint64) {
	pages := (n + 4095) / 4096
	switch {
	case pages <= 1:
		return at, 0
	case pages == 2:
		return at, at + 4096
	}
	first, list := uint64(0), []byte(nil)
	for i := 1; i < pages; i++ {
		if len(list) == 8 && i < pages-1 { // the page's last entry, and more than one is needed: chain
			next, nextAt := h.alloc(4096)
			binary.LittleEndian.PutUint64(list, nextAt)
			list = next
		}
		if list == nil {
			list, first = h.alloc(4096)
		}
		binary.LittleEndian.PutUint64(list, at+uint64(i)*4096)
		list = list[8:]
	}
	return at, first
}

// move is a Read or Write of whole blocks at a page-aligned buffer.
func (h *host) move(op uint8, slba uint64, blocks uint32, at uint64) raw {
	mark := h.used
	p1, p2 := h.transfer(at, int(blocks)*h.c.opt.BlockSize)
	h.used = mark // lists are free again after the command; callers run one at a time
	return rw(op, 1, slba, blocks).prp(p1, p2)
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
