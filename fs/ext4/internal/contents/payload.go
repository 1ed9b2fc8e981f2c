package contents

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Payloads gives out the memory in which a mount's requests bring and fetch file data, so that the controller moves them there
// and the CPU copies nothing. Such memory is held as long as the mount. So it comes from what the pool has reserved for it, for
// which no other request waits, and there is only so much of it: a quarter of the pinned memory, a half of what the others have
// not reserved, and maxPayloads bytes.
type Payloads struct {
	dev   blockdev.Device
	left  atomic.Int64 // bytes to be given out
	given atomic.Int64
}

// maxPayloads is enough for every request of 64 CPUs.
const maxPayloads = 256 << 20

// NewPayloads reserves the memory. Close ends that.
func NewPayloads(v *volume.FS) *Payloads {
	p, most := &Payloads{dev: v.Dev}, int64(maxPayloads)
	if pinned := int64(v.Dev.Info().Pinned); pinned > 0 {
		most = min(most, pinned/4)
	}
	if mem, ok := v.Dev.(blockdev.Bounded); ok {
		most = min(most, mem.Room(blockdev.ForPayload)/2)
		if mem.Reserve(blockdev.ForPayload, most) != nil {
			most = 0
		}
	}
	p.left.Store(most)
	return p
}

// Alloc gives n bytes. The error is ErrNoMemory when all is given out.
func (p *Payloads) Alloc(n int) (*Payload, error) {
	if p.left.Add(-int64(n)) < 0 {
		p.left.Add(int64(n))
		return nil, fmt.Errorf("%w: %d bytes for a payload", blockdev.ErrNoMemory, n)
	}
	buf, err := p.dev.Alloc(n, blockdev.ForPayload|blockdev.NoWait)
	if err != nil {
		p.left.Add(int64(n))
		return nil, err
	}
	p.given.Add(int64(buf.Len()))
	return &Payload{buf}, nil
}

// Enough reserves no more than is given out: there will be no other Alloc.
func (p *Payloads) Enough() {
	p.left.Store(0)
	if mem, ok := p.dev.(blockdev.Bounded); ok {
		_ = mem.Reserve(blockdev.ForPayload, p.given.Load())
	}
}

// Close ends the reservation. What was given out has been released.
func (p *Payloads) Close() {
	if mem, ok := p.dev.(blockdev.Bounded); ok {
		_ = mem.Reserve(blockdev.ForPayload, 0)
	}
}

// Payload is pinned memory of a user's, for one request at a time.
type Payload struct{ buf blockdev.Buffer }

// Bytes is the memory; nil where the CPU cannot reach it.
func (p *Payload) Bytes() []byte { return p.buf.Bytes() }

// Release gives it back. Nobody uses it any more.
func (p *Payload) Release() { p.buf.Release() }

// Content is bytes of a file in memory.
type Content struct {
	Bytes []byte
	In    *Payload // which they begin; nil: they are elsewhere
}

// Load reads len(c.Bytes) bytes from off to where c says and returns how many they are: fewer only at the end of the file. Whole
// blocks at the start of a payload are read in place. What lies behind the bytes in their last block is undefined then.
func Load(i *volume.Inode, off int64, c Content, how ...volume.Reading) (int, error) {
	if c.In != nil && off >= 0 && off&int64(i.FS.BlockSize-1) == 0 {
		if n, ok, err := loadTo(i, off, c.In.buf, len(c.Bytes), how); ok || err != nil {
			return n, err
		}
	}
	d, err := Read(i, off, len(c.Bytes), how...)
	if err != nil {
		return 0, err
	}
	defer d.Release()
	n := copy(c.Bytes, d.Bytes())
	i.FS.Counters.CopiedRead.Add(int64(n))
	return n, nil
}

// loadTo reads up to n bytes from off, the start of a block, into buf. It reports false if they are not in blocks of their own.
func loadTo(i *volume.Inode, off int64, buf blockdev.Buffer, n int, how []volume.Reading) (_ int, ok bool, err error) {
	defer i.FS.NoteTo(&err)
	i.Mu.RLock()
	defer i.EndRead(how...)
	size := i.ReadEnd()
	if !i.Disk.IsReg() || i.IsInline() {
		return 0, false, nil
	}
	if off >= size || n == 0 {
		return 0, true, nil
	}
	n = int(min(int64(n), size-off))
	blocks := i.FS.LogicalEnd(off+int64(n)) - i.FS.Logical(off)
	if buf.Len() < int(blocks)<<i.FS.BlockBits {
		return 0, false, nil
	}
	return n, true, readBlocks(i, buf, 0, i.FS.Logical(off), blocks)
}

// Store is Write of c. keepTimes is for bytes from a write-back cache, which sets their times itself by SetAttr, before or after. Bytes of a
// payload that begin at a block are written from where they are, and the payload is the write's until it returns: the rest of
// the last block is overwritten.
func Store(i *volume.Inode, off int64, c Content, keepTimes bool, may volume.May) (int, error) {
	s := stages.Get().(*stage)
	defer func() {
		*s = stage{}
		stages.Put(s)
	}()
	*s = stage{off: off, end: off + int64(len(c.Bytes)), p: c.Bytes, bs: i.FS.BlockSize, keepTimes: keepTimes}
	s.one[0], s.may = may, s.one[:]
	if c.In != nil && s.skip() == 0 && (len(c.Bytes)+s.bs-1)&^(s.bs-1) <= c.In.buf.Len() {
		s.buf, s.placed = c.In.buf, true
	}
	return writeAt(i, s)
}

var stages = sync.Pool{New: func() any { return new(stage) }}
