package contents

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// Inline data ([layout] Inline Data): on volumes with the feature, the contents of a small file or directory are in its
// inode: 60 bytes in i_block, what is more in the value of the attribute system.data, which is always there and always
// in the body. Other attributes take room from it; what outgrows the inode gets blocks, and gets inline again only when
// it is empty.
//
// Inline contents are metadata: a transaction has them whole.

// MaxInline is more than any inode holds.
const MaxInline = 1 << 16

// Inline is inline data as it was read; Mu is held as long as it is used.
type Inline struct {
	i     *volume.Inode
	attrs *xattr.Set
	More  []byte // the value of system.data
}

// ReadInline reads system.data and its neighbours. Mu is held.
func ReadInline(i *volume.Inode) (*Inline, error) {
	s, err := i.ParseXattrs()
	if err != nil {
		return nil, err
	}
	c := &Inline{i: i, attrs: s}
	for _, a := range s.Body {
		if a.Index == xattr.IndexSystem && a.Name == "data" && a.ValueInum == 0 {
			c.More = a.Value
		}
	}
	return c, nil
}

// Room is how many bytes can be inline, -1 if none can.
func (c *Inline) Room() int {
	n := c.attrs.BodyRoom(xattr.IndexSystem, "data")
	if n < 0 {
		return -1
	}
	return disk.InodeBlockSize + n
}

// Read copies the content from off on, with zeroes behind its end.
func (c *Inline) Read(off int, p []byte) {
	clear(p)
	if off < disk.InodeBlockSize {
		n := copy(p, c.i.Disk.Block[off:])
		p, off = p[n:], disk.InodeBlockSize
	}
	if off -= disk.InodeBlockSize; off < len(c.More) {
		copy(p, c.More[off:])
	}
}

// whole refuses a size of which the inode has only a part. Reads find zeroes there; a change would have to make it all.
func (c *Inline) whole() error {
	if size := c.i.Disk.Size; size > uint64(max(c.Room(), disk.InodeBlockSize)) {
		return disk.Corrupt(volume.InodeName(c.i.Ino()), "%d bytes of inline data, for which the inode has no room", size)
	}
	return nil
}

// Write makes p the content, for which there is room, and its length the size. In a damaged inode there may be none, also for what it has.
func (c *Inline) Write(o *volume.Op, p []byte) error {
	clear(c.i.Disk.Block[copy(c.i.Disk.Block[:], p):])
	more := p[min(len(p), disk.InodeBlockSize):]
	if !c.attrs.PutBody(xattr.Attr{Index: xattr.IndexSystem, Name: "data", Value: append([]byte{}, more...)}) {
		return disk.Corrupt(volume.InodeName(c.i.Ino()), "the inode has no room for its inline data")
	}
	c.More = more
	c.i.Disk.Size = uint64(len(p))
	c.i.Disk.Flags = c.i.Disk.Flags&^disk.FlExtents | disk.FlInlineData
	return c.store(o)
}

// Drop takes the content out of the inode, which has an empty tree then.
func (c *Inline) Drop(o *volume.Op) error {
	if _, err := c.attrs.Delete(xattr.IndexSystem, "data"); err != nil && !errors.Is(err, xattr.ErrNotExist) {
		return err
	}
	return c.store(o)
}

// store writes the attributes in the body, and the inode.
func (c *Inline) store(o *volume.Op) error {
	if err := c.i.WriteXattrBody(o, c.attrs); err != nil {
		return err
	}
	return c.i.Store(o)
}

// canInline says whether new content may go into the inode: it has some there, or none at all.
func canInline(i *volume.Inode) bool {
	if i.IsInline() {
		return true
	}
	return i.FS.Super.FeatureIncompat.Has(disk.IncompatInlineData) && i.Disk.Size == 0 && i.NoBlocks()
}

// writeInline writes the whole stage into the inode. It reports false if there is no room: then the file has a tree, and
// its old content, if any, is in a block. Mu is held.
func writeInline(i *volume.Inode, o *volume.Op, s *stage) (bool, error) {
	if !canInline(i) {
		return false, nil
	}
	c, err := ReadInline(i)
	if err == nil {
		err = c.whole()
	}
	if err != nil {
		return false, err
	}
	if s.end > int64(c.Room()) {
		return false, outgrow(i, o, c)
	}
	p := make([]byte, max(int(i.Disk.Size), int(s.end)))
	c.Read(0, p[:i.Disk.Size])
	copy(p[s.off:], s.p)
	return true, o.Do(inlineCredits, func() error {
		if !s.keepTimes {
			i.Touch(time.Now())
		}
		return c.Write(o, p)
	})
}

// inlineCredits is how many blocks a change of inline contents dirties at most.
const inlineCredits = 4

// resizeInline is resize of inline data. It reports false if that grew out of the inode. Mu is held.
func resizeInline(i *volume.Inode, o *volume.Op, size int64, set func()) (bool, error) {
	c, err := ReadInline(i)
	if err != nil {
		return false, err
	}
	if size > int64(c.Room()) {
		return false, outgrow(i, o, c)
	}
	p := make([]byte, size)
	c.Read(0, p[:min(size, int64(i.Disk.Size))])
	return true, o.Do(inlineCredits, func() error {
		i.Touch(time.Now())
		set()
		return c.Write(o, p)
	})
}

// outgrow moves inline content of a file to a block. Mu is held.
func outgrow(i *volume.Inode, o *volume.Op, c *Inline) error {
	if !i.IsInline() {
		return nil
	}
	return o.Do(inlineCredits+CreditsPerExtent, func() error { return moveToBlock(i, o, c) })
}

func moveToBlock(i *volume.Inode, o *volume.Op, c *Inline) error {
	var b disk.Block
	if i.Disk.Size > 0 {
		buf, err := i.FS.Dev.Alloc(i.FS.BlockSize, blockdev.ForBlock)
		if err != nil {
			return err
		}
		defer buf.Release()
		s := buf.Slice(0, i.FS.BlockSize)
		c.Read(0, s.Bytes())
		if i.Disk.Size < uint64(i.FS.BlockSize) {
			clear(s.Bytes()[i.Disk.Size:])
		}
		if b, _, err = AllocBlocks(i, o, InodeGoal(i), 1); err != nil {
			return err
		}
		if err := i.FS.Dev.Write(blockdev.Bytes(b)<<i.FS.BlockBits, false, s); err != nil {
			return err
		}
		i.FS.Counters.DataWritten.Add(int64(i.FS.BlockSize))
	}
	i.Disk.Flags &^= disk.FlInlineData
	FormatTree(i)
	if b != 0 {
		// The root has room, so nothing can fail but a damaged inode, which this one no longer is.
		if _, err := Tree(i, o).Insert(extent.Extent{Lblk: 0, Len: 1, Pblk: b}); err != nil {
			return err
		}
	}
	return c.Drop(o)
}
