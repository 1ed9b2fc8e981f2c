package media

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/hugepage"
)

// Pinner pins pages of a file so that a copy engine reads them: b, which the CPU may not write to. Unpin ends that in the Pinner's own time.
// What follows its end, and a Pin that fails, is then: it is called once b is not used any more, which may be never.
type Pinner interface {
	Pin(b []byte, then func()) error
	Unpin(b []byte, then func())
}

// ReadStep is what a caller reads at once, in bytes, where View gives nothing.
const ReadStep = 1 << 20

// pages are an image's own pages in the page cache, which a copy engine reads in place: no CPU touches the data. They are
// pinned by the chunk, and only those of chunks of which as much was read before, since pinning costs more than reading them: goroutines
// do it, and reads meanwhile go through host memory as the first time. Of a chunk with holes, which pinning would fill, the parts between
// them are pinned. mkfs.ext4 leaves holes among its tables, beside which files have their blocks.
//
// Pinned pages stay in the page cache, so that what is written to the file is in them. A deallocation takes pages out of
// the file: their chunk is let go of first.
type pages struct {
	m       *Image
	pinner  Pinner
	limit   int64 // bytes that may be pinned at once
	chunks  []Chunk
	pinned  atomic.Int64 // bytes
	refuse  atomic.Bool  // the system pins no pages of such a file, or it is being closed
	pinners sync.WaitGroup
	turns   chan struct{} // held by the pinners at work
	now     atomic.Int64  // when View looked at the length last, by seconds(): reading the clock takes longer than all else it does
}

// Chunk is a part of the image. View holds mu for reading until Release; pinning, unpinning and taking pages out of the file hold it for
// writing.
type Chunk struct {
	mu     sync.RWMutex
	pinned []part       // protected by mu: none while it is not pinned. In order
	read   atomic.Int64 // bytes that were not in a part, since it was last let go of, or was to be pinned
	used   atomic.Int64 // when, by seconds()
	asked  atomic.Bool  // a goroutine is to pin it: reads that still go another way meanwhile ask for none
	stuck  atomic.Bool  // lock has been given up, and goes on
}

// lockPatience is how long one waits for a chunk that is being pinned or read: both are calls of a GPU's driver, which may not return. It is replaced by tests.
var lockPatience = 2 * time.Second

// lock locks mu for writing, and says whether it could in time.
func (c *Chunk) lock() bool {
	if c.mu.TryLock() {
		return true
	}
	if c.stuck.Load() {
		return false
	}
	var over atomic.Bool // the caller has it, or has given up
	locked := make(chan struct{})
	go func() {
		c.mu.Lock()
		if over.Swap(true) {
			c.stuck.Store(false)
			c.mu.Unlock()
			return
		}
		close(locked)
	}()
	late := time.NewTimer(lockPatience)
	defer late.Stop()
	select {
	case <-locked:
		return true
	case <-late.C:
	}
	c.stuck.Store(true) // before the goroutine can say that it is not any more
	if over.Swap(true) {
		c.stuck.Store(false)
		<-locked
		return true
	}
	return false
}

// part is a part of a chunk, without holes, that is pinned.
type part struct {
	off int64 // in the chunk
	b   []byte
}

const (
	chunkSize  = 32 << 20
	chunkStale = 60 // seconds for which a chunk is kept that is not read, if others want its room
	pinShare   = 4  // the part of the machine's memory that may be pinned
	pinTurns   = 2  // pinners at work, or as many as a quarter of the CPUs, up to pinMost
	pinMost    = 4  // more wait for one another in the kernel: 4 make pages huge and register them at 12 to 13 GB/s, 2 and 8 at 9.5 (an H100's machine)

	partLeast = 64 << 10 // bytes: of a chunk with more holes than that leaves room for, some is not pinned
	partsMost = 16

	unpinTimeout = 30 * time.Second // for the pinners at work when the image is closed
)

// newPages gives nil where pages cannot be used.
func newPages(m *Image, pinner Pinner) *pages {
	var info unix.Sysinfo_t
	if pinner == nil || unix.Sysinfo(&info) != nil {
		return nil
	}
	return &pages{m: m, pinner: pinner, limit: int64(info.Totalram) * int64(info.Unit) / pinShare, chunks: make([]Chunk, m.size/chunkSize),
		turns: make(chan struct{}, min(max(pinTurns, runtime.NumCPU()/4), pinMost))}
}

// view is the image's bytes from off on, at most n of them, where a copy engine can read them: nil if it cannot. They stay
// until Release. The CPU reads them by CopyView: a file that was truncated has no bytes there.
func (p *pages) view(off, n int64, look bool) (*Chunk, []byte) {
	i := off / chunkSize
	if p == nil || i >= int64(len(p.chunks)) || !p.chunks[i].mu.TryRLock() {
		return nil, nil
	}
	if look {
		p.now.Store(seconds())
	}
	c, at := &p.chunks[i], off%chunkSize
	for k := range c.pinned {
		if s := &c.pinned[k]; at >= s.off && at-s.off < int64(len(s.b)) {
			if now := p.now.Load(); c.used.Load() != now {
				c.used.Store(now)
			}
			at -= s.off
			return c, s.b[at:min(at+n, int64(len(s.b)))]
		}
	}
	c.mu.RUnlock()
	return nil, nil
}

// missed counts what a chunk did not give, and has it pinned in the end.
func (p *pages) missed(off, n int64) {
	if i := off / chunkSize; i < int64(len(p.chunks)) {
		p.chunks[i].ask(p, i, min(n, chunkSize-off%chunkSize))
	}
}

// Release gives back what View gave: the bytes may not be used any more.
func (c *Chunk) Release() { c.mu.RUnlock() }

// Pinned is how many bytes of the image are pinned now.
func (m *Image) Pinned() int64 {
	if m.pages == nil {
		return 0
	}
	return m.pages.pinned.Load()
}

// ViewSize is how many bytes View gives at most, from a multiple of that; 0 if it gives nothing.
func (m *Image) ViewSize() int64 {
	if m.pages == nil {
		return 0
	}
	return chunkSize
}

// ask has the chunk pinned when n bytes more make it read for a second time.
func (c *Chunk) ask(p *pages, i, n int64) {
	read := c.read.Load()
	switch {
	case p.refuse.Load():
	case read+n <= chunkSize:
		c.read.Add(n)
	case c.read.CompareAndSwap(read, 0) && c.asked.CompareAndSwap(false, true):
		p.pinners.Go(func() {
			defer c.asked.Store(false)
			p.turns <- struct{}{}
			defer func() { <-p.turns }()
			c.mu.Lock()
			defer c.mu.Unlock()
			if !p.refuse.Load() {
				p.pin(c, i*chunkSize)
			}
		})
	}
}

// pin pins what a chunk has between its holes. If it has more than is pinned already, since something was written into a hole, that is let go
// of first. The caller holds c.mu.
func (p *pages) pin(c *Chunk, off int64) {
	found := p.m.data(off, off+chunkSize)
	bytes, had := int64(0), int64(0)
	for _, r := range found {
		bytes += r[1] - r[0]
	}
	for _, s := range c.pinned {
		had += int64(len(s.b))
	}
	if bytes <= had {
		return
	}
	p.unpin(c)
	if p.pinned.Add(bytes) > p.limit && !p.makeRoom(bytes) {
		p.pinned.Add(-bytes)
		return
	}
	for _, r := range found {
		n := r[1] - r[0]
		b, err := hugepage.Map(p.m.fd, r[0], n, unix.PROT_READ)
		if err == nil {
			collapse(b, r[0])
			_ = unix.Madvise(b, unix.MADV_POPULATE_READ) // several at once, which pinning is not
			if err = p.pinner.Pin(b, unmap(b)); err == nil {
				c.pinned = append(c.pinned, part{off: r[0] - off, b: b})
				bytes -= n
				continue
			}
		}
		p.refuse.Store(true)
		p.pinned.Add(-bytes) // of those that are not pinned
		break
	}
	c.used.Store(seconds())
}

func unmap(b []byte) func() {
	return func() { _ = unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b))) }
}

// data is where a range of the image, of whole pages, has no holes: whole pages, and at most partsMost of the parts that have partLeast bytes.
func (m *Image) data(off, end int64) (found [][2]int64) {
	page := int64(unix.Getpagesize())
	for off < end && len(found) < partsMost {
		from, err := unix.Seek(m.fd, off, unix.SEEK_DATA)
		if err != nil || from >= end { // ENXIO: nothing but a hole
			break
		}
		to, err := unix.Seek(m.fd, from, unix.SEEK_HOLE)
		if err != nil {
			break
		}
		to = min(to, end)
		if a, z := (from+page-1)/page*page, to/page*page; z-a >= partLeast {
			found = append(found, [2]int64{a, z})
		}
		off = to
	}
	return found
}

var began = time.Now()

// seconds is a clock that nobody sets.
func seconds() int64 { return int64(time.Since(began) / time.Second) }

// makeRoom unpins chunks that are not read any more, of n bytes together.
func (p *pages) makeRoom(n int64) bool {
	now := seconds()
	for i := range p.chunks {
		c := &p.chunks[i]
		if now-c.used.Load() < chunkStale || !c.mu.TryLock() {
			continue
		}
		for _, s := range c.pinned {
			n -= int64(len(s.b))
		}
		p.unpin(c)
		c.mu.Unlock()
		if n <= 0 {
			return true
		}
	}
	return false
}

// unpin unpins a chunk: it gives no views from now on. The caller holds c.mu.
func (p *pages) unpin(c *Chunk) {
	for _, s := range c.pinned {
		p.pinned.Add(-int64(len(s.b)))
		p.pinner.Unpin(s.b, unmap(s.b))
	}
	if len(c.pinned) > 0 {
		c.read.Store(0)
	}
	c.pinned = nil
}

// without calls f for the parts of a range, which takes their pages out of the file. Their chunks are unpinned first, and not pinned
// meanwhile. Where one does not get to be unpinned, for a GPU hangs, in is called, which leaves the pages in the file.
func (p *pages) without(off, n int64, f, in func(off, n int64) error) error {
	for n > 0 && p != nil && off < int64(len(p.chunks))*chunkSize {
		c, part := &p.chunks[off/chunkSize], min(n, chunkSize-off%chunkSize)
		var err error
		if c.lock() {
			p.unpin(c)
			err = f(off, part)
			c.mu.Unlock()
		} else {
			err = in(off, part)
		}
		if err != nil {
			return err
		}
		off, n = off+part, n-part
	}
	if n == 0 {
		return nil
	}
	return f(off, n)
}

// close lets go of all chunks.
func (p *pages) close() {
	if p == nil {
		return
	}
	p.refuse.Store(true)
	ended := make(chan struct{})
	go func() {
		p.pinners.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(unpinTimeout):
		return // the driver of a device that has failed may never answer; the pages stay until the process ends
	}
	for i := range p.chunks {
		if c := &p.chunks[i]; c.lock() { // else likewise
			p.unpin(c)
			c.mu.Unlock()
		}
	}
}
