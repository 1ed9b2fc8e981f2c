package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// xattrBlock reads the inode's attribute block.
func (i *Inode) xattrBlock() (*jbd2.Buffer, error) {
	if !i.fs.alloc.Valid(jbd2.Block(i.d.FileACL), 1) {
		return nil, disk.Corrupt(inodeName(i.Ino()), "attribute block %d cannot be one", i.d.FileACL)
	}
	buf, err := i.fs.cache.Get(jbd2.Block(i.d.FileACL))
	if err != nil {
		return nil, err
	}
	if !buf.Verified() {
		if err := i.fs.xattrs.VerifyBlock(inodeName(i.Ino()), i.d.FileACL, buf.Data()); err != nil {
			buf.Put()
			return nil, err
		}
		buf.SetVerified()
	}
	return buf, nil
}

// parseXattrs reads all attributes. What it returns does not share memory with the buffers. mu is held.
func (i *Inode) parseXattrs() (*xattr.Set, error) {
	buf, slot, err := i.slot()
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	buf.RLock()
	area := append([]byte{}, i.d.XattrArea(slot)...)
	buf.RUnlock()
	var block []byte
	if i.d.FileACL != 0 {
		blk, err := i.xattrBlock()
		if err != nil {
			return nil, err
		}
		block = append([]byte{}, blk.Data()...)
		blk.Put()
	}
	return i.fs.xattrs.Parse(inodeName(i.Ino()), area, i.d.FileACL, block)
}

// writeXattrBody puts what of s lies in the inode's slot in place. The caller stores the inode.
func (i *Inode) writeXattrBody(o *op, s *xattr.Set) error {
	return o.changeSlot(i, func(slot []byte) { i.fs.xattrs.EncodeBody(s, i.d.XattrArea(slot)) })
}

// noteExtAttr sets ext_attr, without which e2fsck takes attributes for rubbish.
func (v *FS) noteExtAttr(o *op) {
	if !v.extAttr.Swap(true) {
		v.updateSuper(o.h, func(sb *disk.Superblock) { sb.FeatureCompat |= disk.CompatExtAttr })
	}
}
