package contents

import (
	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Reading a file:
//
//  1. one pinned buffer for the whole range. Allocating may wait, so no lock is held: holders of memory may wait for Mu
//  2. under Mu, shared: map the range to extents and holes; holes and unwritten extents are zeroed in the buffer
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
func Read(i *volume.Inode, off int64, n int, how ...volume.Reading) (_ *Data, err error) {
	defer i.FS.NoteTo(&err)
	if off < 0 || n < 0 {
		return nil, volume.ErrInvalid
	}
	for {
		var buf blockdev.Buffer
		if need := readNeeds(i, off, n); need > 0 {
			if buf, err = i.FS.Dev.Alloc(need); err != nil {
				return nil, err
			}
		}
		d, err := readTo(i, buf, off, n, how)
		if buf != nil && (d == nil || d.buf == nil) {
			buf.Release()
		}
		if d != nil || err != nil {
			return d, err
		}
	}
}

// readNeeds is how large a buffer a read takes: at most, for a file that does not grow.
func readNeeds(i *volume.Inode, off int64, n int) int {
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	size := i.ReadEnd()
	if !i.Disk.IsReg() || i.IsInline() || off >= size || n == 0 {
		return 0
	}
	n = int(min(int64(n), size-off))
	return (int(off&int64(i.FS.BlockSize-1)) + n + i.FS.BlockSize - 1) >> i.FS.BlockBits << i.FS.BlockBits
}

// readTo is Read into buf. It returns nothing if that is too small: the file has grown.
func readTo(i *volume.Inode, buf blockdev.Buffer, off int64, n int, how []volume.Reading) (*Data, error) {
	i.Mu.RLock()
	defer i.EndRead(how...)
	if !i.Disk.IsReg() {
		return nil, notRegular(i)
	}
	size := i.ReadEnd()
	if off >= size || n == 0 {
		return &Data{}, nil
	}
	n = int(min(int64(n), size-off))
	if i.IsInline() {
		c, err := ReadInline(i)
		if err != nil {
			return nil, err
		}
		b := make([]byte, n)
		if off <= MaxInline {
			c.Read(int(off), b)
		}
		return &Data{b: b}, nil
	}
	first, skip := i.FS.Logical(off), int(off&int64(i.FS.BlockSize-1))
	blocks := (skip + n + i.FS.BlockSize - 1) >> i.FS.BlockBits
	if buf == nil || buf.Len() < blocks<<i.FS.BlockBits {
		return nil, nil
	}
	if err := readBlocks(i, buf, 0, first, uint32(blocks)); err != nil {
		return nil, err
	}
	return &Data{buf: buf, b: buf.Bytes()[skip : skip+n]}, nil
}

func notRegular(i *volume.Inode) error {
	if i.Disk.IsDir() {
		return volume.ErrIsDir
	}
	return volume.ErrInvalid
}

// readBlocks reads n logical blocks from l into buf at byte at. Mu is held.
func readBlocks(i *volume.Inode, buf blockdev.Buffer, at int, l, n uint32) error {
	w := look(i, l, l+n)
	defer w.done()
	for w.next() {
		s := buf.Slice(at+int(w.x.Lblk-l)<<i.FS.BlockBits, int(w.x.Len)<<i.FS.BlockBits)
		if w.x.Hole() || w.x.Unwritten {
			clear(s.Bytes())
			continue
		}
		w.list.add(blockdev.OpRead, blockdev.Bytes(w.x.Pblk)<<i.FS.BlockBits, s)
	}
	if w.err != nil {
		return w.err
	}
	i.FS.Counters.DataRead.Add(w.list.bytes)
	if err := w.list.do(i.FS.Dev); err != nil {
		return err
	}
	if o := i.FS.Cache.Overlay(); o != nil {
		return readLogged(i, o, buf, at, l, n)
	}
	return nil
}

// readLogged puts what the log holds of logical blocks [l, l+n) over what was read from the medium: with data=journal
// contents of files go through it, too.
func readLogged(i *volume.Inode, o *jbd2.Overlay, buf blockdev.Buffer, at int, l, n uint32) error {
	return MapRange(i, l, l+n, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		for k := range x.Len {
			s := buf.Slice(at+int(x.Lblk-l+k)<<i.FS.BlockBits, i.FS.BlockSize)
			if _, err := o.Read(x.Pblk+disk.Block(k), s); err != nil {
				return err
			}
		}
		return nil
	})
}
