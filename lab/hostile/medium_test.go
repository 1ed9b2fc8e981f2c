package hostile

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
)

// medium is a device in memory. It records which blocks were written, and fails after maxRequests requests.
type medium struct {
	info blockdev.Info
	bufs atomic.Int64 // buffers not yet released

	mu       sync.Mutex
	image    *content // protected by mu, as is all below
	written  map[int64]bool
	requests int
	outside  error // of the first invalid request
}

var errEndless = errors.New("more requests than a small volume needs")

const lba = 512

// maxBuffer is larger than the largest transfer of a tour or of churn.
const maxBuffer = 4 << 20

func newMedium(image *content, readOnly bool) *medium {
	return &medium{
		info: blockdev.Info{
			Name: "sample", NSID: 1, BlockSize: lba, Blocks: blockdev.Blocks(image.size / lba), MaxTransfer: 1 << 20,
			Queues: 1, Depth: 1, VolatileCache: true, Discard: true, WriteZeroes: true, ReadOnly: readOnly, Simulated: true,
		},
		image:   image.clone(),
		written: map[int64]bool{},
	}
}

func (m *medium) Info() blockdev.Info { return m.info }

// snapshot is a copy of the image as it is.
func (m *medium) snapshot() *content {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.image.clone()
}

type memory struct {
	m *medium
	b []byte
}

func (m *medium) Alloc(n int, _ ...blockdev.Use) (blockdev.Buffer, error) {
	if n < 0 || n > maxBuffer {
		return nil, fmt.Errorf("a buffer of %d bytes: %w", n, errEndless)
	}
	m.bufs.Add(1)
	return &memory{m, blockdev.TestMemory(n)}, nil
}

func (b *memory) Bytes() []byte { return b.b }
func (b *memory) Len() int      { return len(b.b) }

func (b *memory) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: b, Off: off, N: n} }

func (b *memory) Release() {
	if b.m == nil {
		panic("buffer released twice")
	}
	b.m.bufs.Add(-1)
	blockdev.ReleaseTestMemory(b.b)
	b.m, b.b = nil, nil
}

func (m *medium) Do(reqs ...*blockdev.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	for _, r := range reqs {
		r.Err = m.doLocked(r)
		if first == nil {
			first = r.Err
		}
	}
	return first
}

func (m *medium) doLocked(r *blockdev.Request) error {
	if err := r.Check(m.info); err != nil {
		if m.outside == nil {
			m.outside = err
		}
		return err
	}
	if m.requests++; m.requests > maxRequests {
		return r.Fail(m.info, errEndless)
	}
	if r.Op != blockdev.OpRead {
		for off := int64(r.Off); off < int64(r.Off+r.Length()); off += lba {
			m.written[off/lba] = true
		}
	}
	off := int64(r.Off)
	switch r.Op {
	case blockdev.OpRead:
		for _, s := range r.Bufs {
			m.image.read(s.Bytes(), off)
			off += int64(s.N)
		}
	case blockdev.OpWrite:
		for _, s := range r.Bufs {
			m.image.write(s.Bytes(), off)
			off += int64(s.N)
		}
	case blockdev.OpDiscard, blockdev.OpWriteZeroes:
		m.image.zero(off, int64(r.Len))
	}
	return nil
}

func (m *medium) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return m.Do(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}

func (m *medium) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return m.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

func (m *medium) Flush() error { return m.Do(&blockdev.Request{Op: blockdev.OpFlush}) }

func (m *medium) Discard(off, n blockdev.Bytes) error {
	return m.Do(&blockdev.Request{Op: blockdev.OpDiscard, Off: off, Len: n})
}

func (m *medium) WriteZeroes(off, n blockdev.Bytes) error {
	return m.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: off, Len: n})
}

func (m *medium) Close() error { return nil }
