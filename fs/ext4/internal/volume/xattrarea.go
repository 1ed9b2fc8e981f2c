package volume

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// XattrBlock reads the inode's attribute block.
func (i *Inode) XattrBlock() (*jbd2.Buffer, error) {
	if !i.FS.Alloc.Valid(disk.Block(i.Disk.FileACL), 1) {
		return nil, disk.Corrupt(InodeName(i.Ino()), "attribute block %d cannot be one", i.Disk.FileACL)
	}
	buf, err := i.ReadOwn(disk.Block(i.Disk.FileACL))
	if err != nil {
		return nil, err
	}
	if !buf.Verified() {
		if err := i.FS.XattrFormat.VerifyBlock(InodeName(i.Ino()), i.Disk.FileACL, buf.Data()); err != nil {
			buf.Put()
			return nil, err
		}
		buf.SetVerified()
	}
	return buf, nil
}

// ParseXattrs reads all attributes. What it returns does not share memory with the buffers. Mu is held.
func (i *Inode) ParseXattrs() (*xattr.Set, error) {
	buf, slot, err := i.Slot()
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	buf.RLock()
	area := append([]byte{}, i.Disk.XattrArea(slot)...)
	buf.RUnlock()
	var block []byte
	if i.Disk.FileACL != 0 {
		blk, err := i.XattrBlock()
		if err != nil {
			return nil, err
		}
		block = append([]byte{}, blk.Data()...)
		blk.Put()
	}
	return i.FS.XattrFormat.Parse(InodeName(i.Ino()), area, i.Disk.FileACL, block)
}

// WriteXattrBody puts what of s lies in the inode's slot in place. The caller stores the inode.
func (i *Inode) WriteXattrBody(o *Op, s *xattr.Set) error {
	return o.ChangeSlot(i, func(slot []byte) { i.FS.XattrFormat.EncodeBody(s, i.Disk.XattrArea(slot)) })
}

// NoteExtAttr sets ext_attr, without which e2fsck removes attributes.
func (v *FS) NoteExtAttr(o *Op) {
	if !v.extAttr.Swap(true) {
		v.updateSuper(o.Handle, func(sb *disk.Superblock) { sb.FeatureCompat |= disk.CompatExtAttr })
	}
}
