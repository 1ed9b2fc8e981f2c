package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// Inline data ([layout] Inline Data): on volumes with the feature, the contents of a small file or directory are in its
// inode: 60 bytes in i_block, what is more in the value of the attribute system.data, which is always there and always
// in the body. Other attributes take room from it; what outgrows the inode gets blocks, and gets inline again only when
// it is empty.
//
// Inline contents are metadata: a transaction has them whole.

// maxInline is more than any inode holds.
const maxInline = 1 << 16

// inlineContent is inline data as it was read; mu is held as long as it is used.
type inlineContent struct {
	i     *Inode
	attrs *xattr.Set
	more  []byte // the value of system.data
}

// inlineContent reads system.data and its neighbours. mu is held.
func (i *Inode) inlineContent() (*inlineContent, error) {
	s, err := i.parseXattrs()
	if err != nil {
		return nil, err
	}
	c := &inlineContent{i: i, attrs: s}
	for _, a := range s.Body {
		if a.Index == xattr.IndexSystem && a.Name == "data" && a.ValueInum == 0 {
			c.more = a.Value
		}
	}
	return c, nil
}

// room is how many bytes can be inline, -1 if none can.
func (c *inlineContent) room() int {
	n := c.attrs.BodyRoom(xattr.IndexSystem, "data")
	if n < 0 {
		return -1
	}
	return disk.InodeBlockSize + n
}

// read copies the content from off on, with zeroes behind its end.
func (c *inlineContent) read(off int, p []byte) {
	clear(p)
	if off < disk.InodeBlockSize {
		n := copy(p, c.i.d.Block[off:])
		p, off = p[n:], disk.InodeBlockSize
	}
	if off -= disk.InodeBlockSize; off < len(c.more) {
		copy(p, c.more[off:])
	}
}

// write makes p the content, for which there is room, and its length the size.
func (c *inlineContent) write(o *op, p []byte) error {
	clear(c.i.d.Block[copy(c.i.d.Block[:], p):])
	more := p[min(len(p), disk.InodeBlockSize):]
	if !c.attrs.PutBody(xattr.Attr{Index: xattr.IndexSystem, Name: "data", Value: append([]byte{}, more...)}) {
		panic("ext4: inline data without room")
	}
	c.more = more
	c.i.d.Size = uint64(len(p))
	c.i.d.Flags = c.i.d.Flags&^disk.FlExtents | disk.FlInlineData
	return c.store(o)
}

// drop takes the content out of the inode, which has an empty tree then.
func (c *inlineContent) drop(o *op) error {
	if _, err := c.attrs.Delete(xattr.IndexSystem, "data"); err != nil && !errors.Is(err, xattr.ErrNotExist) {
		return err
	}
	return c.store(o)
}

// store writes the attributes in the body, and the inode.
func (c *inlineContent) store(o *op) error {
	if err := c.i.writeXattrBody(o, c.attrs); err != nil {
		return err
	}
	return c.i.store(o)
}

// canInline says whether new content may go into the inode: it has some there, or none at all.
func (i *Inode) canInline() bool {
	if i.inline() {
		return true
	}
	return i.fs.sb.FeatureIncompat.Has(disk.IncompatInlineData) && i.d.Size == 0 && i.noBlocks()
}

// writeInline writes the whole stage into the inode. It reports false if there is no room: then the file has a tree, and
// its old content, if any, is in a block. mu is held.
func (i *Inode) writeInline(o *op, s *stage) (bool, error) {
	if !i.canInline() {
		return false, nil
	}
	c, err := i.inlineContent()
	if err != nil {
		return false, err
	}
	if s.end > int64(c.room()) {
		return false, i.outgrow(o, c)
	}
	p := make([]byte, max(int(i.d.Size), int(s.end)))
	c.read(0, p[:i.d.Size])
	copy(p[s.off:], s.p)
	return true, o.do(inlineCredits, func() error {
		if !s.keepTimes {
			i.touch(time.Now())
		}
		return c.write(o, p)
	})
}

// inlineCredits: the inode.
const inlineCredits = 4

// resizeInline is resize of inline data. It reports false if that grew out of the inode. mu is held.
func (i *Inode) resizeInline(o *op, size int64, set func()) (bool, error) {
	c, err := i.inlineContent()
	if err != nil {
		return false, err
	}
	if size > int64(c.room()) {
		return false, i.outgrow(o, c)
	}
	p := make([]byte, size)
	c.read(0, p[:min(size, int64(i.d.Size))])
	return true, o.do(inlineCredits, func() error {
		i.touch(time.Now())
		set()
		return c.write(o, p)
	})
}

// outgrow moves inline content of a file to a block. mu is held.
func (i *Inode) outgrow(o *op, c *inlineContent) error {
	if !i.inline() {
		return nil
	}
	return o.do(inlineCredits+creditsPerExtent, func() error { return i.moveToBlock(o, c) })
}

func (i *Inode) moveToBlock(o *op, c *inlineContent) error {
	var b jbd2.Block
	if i.d.Size > 0 {
		buf, err := i.fs.dev.Alloc(i.fs.bs, blockdev.ForBlock)
		if err != nil {
			return err
		}
		defer buf.Release()
		s := buf.Slice(0, i.fs.bs)
		c.read(0, s.Bytes())
		if i.d.Size < uint64(i.fs.bs) {
			clear(s.Bytes()[i.d.Size:])
		}
		if b, _, err = i.allocBlocks(o, i.inodeGoal(), 1); err != nil {
			return err
		}
		if err := i.fs.dev.Write(blockdev.Bytes(b)<<i.fs.bits, false, s); err != nil {
			return err
		}
		i.fs.stats.dataWritten.Add(int64(i.fs.bs))
	}
	i.d.Flags &^= disk.FlInlineData
	i.formatTree()
	if b != 0 {
		// The root has room, so nothing can fail but a damaged inode, which this one no longer is.
		if _, err := i.tree(o).Insert(extent.Extent{Lblk: 0, Len: 1, Pblk: b}); err != nil {
			return err
		}
	}
	return c.drop(o)
}
