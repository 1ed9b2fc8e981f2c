package ext4

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Reading a file:
//
//  1. one pinned buffer for the whole range. It may have to be waited for, so no lock is held: who has memory may wait for mu
//  2. under mu, shared: map the range to extents and holes; holes and unwritten extents are zeroed in the buffer
//  3. one Device.Do for all extents, in parallel over the queue pairs
//  4. the caller replies from the buffer and releases it

// Data is file content in a pinned buffer. The zero Data is empty.
type Data struct {
	buf blockdev.Buffer
	b   []byte
}

// Bytes is the content, valid until Release.
func (d *Data) Bytes() []byte { return d.b }

// Release gives the buffer back.
func (d *Data) Release() {
	if d.buf != nil {
		d.buf.Release()
		d.buf, d.b = nil, nil
	}
}

// Read reads at most n bytes from off. It reads less only at the end of the file.
func (i *Inode) Read(off int64, n int) (_ *Data, err error) {
	defer i.fs.noteTo(&err)
	if off < 0 || n < 0 {
		return nil, ErrInvalid
	}
	for {
		var buf blockdev.Buffer
		if need := i.readNeeds(off, n); need > 0 {
			if buf, err = i.fs.dev.Alloc(need); err != nil {
				return nil, err
			}
		}
		d, err := i.readTo(buf, off, n)
		if buf != nil && (d == nil || d.buf == nil) {
			buf.Release()
		}
		if d != nil || err != nil {
			return d, err
		}
	}
}

// readNeeds is how large a buffer a read takes: at most, for a file that does not grow.
func (i *Inode) readNeeds(off int64, n int) int {
	i.mu.RLock()
	defer i.mu.RUnlock()
	size := i.end()
	if !i.d.IsReg() || i.inline() || off >= size || n == 0 {
		return 0
	}
	n = int(min(int64(n), size-off))
	return (int(off&int64(i.fs.bs-1)) + n + i.fs.bs - 1) >> i.fs.bits << i.fs.bits
}

// readTo is Read into buf. It returns nothing if that is too small: the file has grown.
func (i *Inode) readTo(buf blockdev.Buffer, off int64, n int) (*Data, error) {
	i.mu.RLock()
	defer i.endRead()
	if !i.d.IsReg() {
		return nil, i.notRegular()
	}
	size := i.end()
	if off >= size || n == 0 {
		return &Data{}, nil
	}
	n = int(min(int64(n), size-off))
	if i.inline() {
		c, err := i.inlineContent()
		if err != nil {
			return nil, err
		}
		b := make([]byte, n)
		if off <= maxInline {
			c.read(int(off), b)
		}
		return &Data{b: b}, nil
	}
	first, skip := i.fs.logical(off), int(off&int64(i.fs.bs-1))
	blocks := (skip + n + i.fs.bs - 1) >> i.fs.bits
	if buf == nil || buf.Len() < blocks<<i.fs.bits {
		return nil, nil
	}
	if err := i.readBlocks(buf, 0, first, uint32(blocks)); err != nil {
		return nil, err
	}
	return &Data{buf: buf, b: buf.Bytes()[skip : skip+n]}, nil
}

func (i *Inode) notRegular() error {
	if i.d.IsDir() {
		return ErrIsDir
	}
	return ErrInvalid
}

// readBlocks reads n logical blocks from l into buf at byte at. mu is held.
func (i *Inode) readBlocks(buf blockdev.Buffer, at int, l, n uint32) error {
	var list ioList
	err := i.mapRange(l, l+n, func(x extent.Extent) error {
		s := buf.Slice(at+int(x.Lblk-l)<<i.fs.bits, int(x.Len)<<i.fs.bits)
		if x.Hole() || x.Unwritten {
			clear(s.Bytes())
			return nil
		}
		list.add(blockdev.OpRead, blockdev.Bytes(x.Pblk)<<i.fs.bits, s)
		return nil
	})
	if err != nil {
		return err
	}
	i.fs.stats.dataRead.Add(list.bytes)
	if err := list.do(i.fs.dev); err != nil {
		return err
	}
	if o := i.fs.cache.Overlay(); o != nil {
		return i.readLogged(o, buf, at, l, n)
	}
	return nil
}

// readLogged puts what the log holds of logical blocks [l, l+n) over what was read from the medium: with data=journal
// contents of files go through it, too.
func (i *Inode) readLogged(o *jbd2.Overlay, buf blockdev.Buffer, at int, l, n uint32) error {
	return i.mapRange(l, l+n, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		for k := range x.Len {
			s := buf.Slice(at+int(x.Lblk-l+k)<<i.fs.bits, i.fs.bs)
			if _, err := o.Read(x.Pblk+jbd2.Block(k), s); err != nil {
				return err
			}
		}
		return nil
	})
}
