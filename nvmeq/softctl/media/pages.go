package media

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pinner pins pages of a file so that a copy engine reads them: b, which the CPU may not write to. Unpin ends that in the Pinner's own time,
// and calls then when it has ended.
type Pinner interface {
	Pin(b []byte) error
	Unpin(b []byte, then func())
}

// ReadStep is what a caller reads at once, in bytes, where View gives nothing.
const ReadStep = 1 << 20

// pages are an image's own pages in the page cache, which a copy engine reads in place: no CPU touches the data. They are
// pinned by the chunk, and only those of chunks that were read whole before, since pinning costs more than reading them: goroutines
// do it, and reads meanwhile go through host memory as the first time.
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
}

// Chunk is a part of the image. View holds mu for reading until Release; pinning, unpinning and taking pages out of the file hold it for
// writing.
type Chunk struct {
	mu   sync.RWMutex
	b    []byte       // protected by mu: nil while it is not pinned
	read atomic.Int64 // bytes since it was last let go of, or was to be pinned
	used atomic.Int64 // when, in seconds
}

const (
	chunkSize  = 16 << 20
	chunkStale = 60 // seconds for which a chunk is kept that is not read, if others want its room
	pinShare   = 4  // the part of the machine's memory that may be pinned
	pinTurns   = 2  // pinners at work

	unpinTimeout = 30 * time.Second // for the pinners at work when the image is closed
)

// newPages gives nil where pages cannot be used.
func newPages(m *Image, pinner Pinner) *pages {
	var info unix.Sysinfo_t
	if pinner == nil || unix.Sysinfo(&info) != nil {
		return nil
	}
	return &pages{m: m, pinner: pinner, limit: int64(info.Totalram) * int64(info.Unit) / pinShare, chunks: make([]Chunk, m.size/chunkSize),
		turns: make(chan struct{}, pinTurns)}
}

// view is the image's bytes from off on, at most n of them, where a copy engine can read them: nil if it cannot. They stay
// until Release. The CPU must not read them: a file that was truncated has no bytes there.
func (p *pages) view(off, n int64) (*Chunk, []byte) {
	i := off / chunkSize
	if p == nil || i >= int64(len(p.chunks)) || !p.chunks[i].mu.TryRLock() {
		return nil, nil
	}
	c, at := &p.chunks[i], off%chunkSize
	n = min(n, chunkSize-at)
	if c.b == nil {
		c.mu.RUnlock()
		return nil, nil
	}
	c.used.Store(time.Now().Unix())
	return c, c.b[at : at+n]
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
	case c.read.CompareAndSwap(read, 0):
		p.pinners.Go(func() {
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

// pin pins a chunk without holes: pinning would fill them. The caller holds c.mu.
func (p *pages) pin(c *Chunk, off int64) {
	if c.b != nil {
		return
	}
	if hole, err := unix.Seek(p.m.fd, off, unix.SEEK_HOLE); err != nil || hole < off+chunkSize {
		return
	}
	if p.pinned.Add(chunkSize) > p.limit && !p.makeRoom() {
		p.pinned.Add(-chunkSize)
		return
	}
	at, err := unix.MmapPtr(p.m.fd, off, nil, chunkSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		p.refuse.Store(true)
		p.pinned.Add(-chunkSize)
		return
	}
	b := unsafe.Slice((*byte)(at), chunkSize)
	_ = unix.Madvise(b, unix.MADV_POPULATE_READ) // several at once, which pinning is not
	if err := p.pinner.Pin(b); err != nil {
		p.refuse.Store(true)
		p.pinned.Add(-chunkSize)
		_ = unix.MunmapPtr(at, chunkSize)
		return
	}
	c.b = b
	c.used.Store(time.Now().Unix())
}

// makeRoom unpins a chunk that is not read any more.
func (p *pages) makeRoom() bool {
	now := time.Now().Unix()
	for i := range p.chunks {
		c := &p.chunks[i]
		if now-c.used.Load() < chunkStale || !c.mu.TryLock() {
			continue
		}
		had := c.b != nil
		p.unpin(c)
		c.mu.Unlock()
		if had {
			return true
		}
	}
	return false
}

// unpin unpins a chunk: it gives no views from now on. The caller holds c.mu.
func (p *pages) unpin(c *Chunk) {
	b := c.b
	if c.b = nil; b == nil {
		return
	}
	c.read.Store(0)
	p.pinned.Add(-chunkSize)
	p.pinner.Unpin(b, func() { _ = unix.MunmapPtr(unsafe.Pointer(&b[0]), chunkSize) })
}

// without calls f for the parts of a range, which takes their pages out of the file. Their chunks are unpinned first, and not pinned
// meanwhile.
func (p *pages) without(off, n int64, f func(off, n int64) error) error {
	for n > 0 && p != nil && off < int64(len(p.chunks))*chunkSize {
		c, part := &p.chunks[off/chunkSize], min(n, chunkSize-off%chunkSize)
		c.mu.Lock()
		p.unpin(c)
		err := f(off, part)
		c.mu.Unlock()
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
		p.chunks[i].mu.Lock()
		p.unpin(&p.chunks[i])
		p.chunks[i].mu.Unlock()
	}
}
