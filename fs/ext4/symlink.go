package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Symlink makes a symbolic link. A target of less than 60 bytes lies in the inode itself, a longer one in a block.
func (i *Inode) Symlink(name, target string, uid, gid uint32, with ...With) (*Inode, error) {
	if target == "" {
		return nil, ErrNotExist
	}
	if len(target) >= i.fs.bs || len(target) >= 4096 {
		return nil, ErrNameTooLong
	}
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		n, err := i.newInode(o, disk.ModeLink|0o777, uid, gid)
		if err != nil {
			return nil, err
		}
		n.d.Size = uint64(len(target))
		if len(target) < disk.InodeBlockSize {
			n.d.Flags &^= disk.FlExtents
			clear(n.d.Block[:])
			copy(n.d.Block[:], target)
			return n, nil
		}
		buf, err := n.appendMeta(o, 0)
		if err != nil {
			return nil, err
		}
		defer buf.Put()
		buf.Lock()
		copy(buf.Data(), target)
		o.h.Dirty(buf)
		buf.Unlock()
		return n, nil
	})
}

// Readlink reports the target of a symbolic link.
func (i *Inode) Readlink() (_ string, err error) {
	defer i.fs.noteTo(&err)
	i.mu.RLock()
	defer i.endRead()
	switch {
	case !i.d.IsLink():
		return "", ErrInvalid
	case i.inline():
		if i.d.Size >= maxInline {
			return "", disk.Corrupt(inodeName(i.Ino()), "symbolic link of %d bytes in its inode", i.d.Size)
		}
		c, err := i.inlineContent()
		if err != nil {
			return "", err
		}
		b := make([]byte, i.d.Size)
		c.read(0, b)
		return string(b), nil
	case i.fastSymlink():
		if i.d.Size >= disk.InodeBlockSize {
			return "", disk.Corrupt(inodeName(i.Ino()), "symbolic link of %d bytes without a block", i.d.Size)
		}
		return string(i.d.Block[:i.d.Size]), nil
	}
	var target string
	err = i.mapRange(0, 1, func(x extent.Extent) error {
		if x.Hole() {
			return disk.Corrupt(inodeName(i.Ino()), "symbolic link without a block")
		}
		buf, err := i.fs.cache.Get(x.Pblk)
		if err != nil {
			return err
		}
		defer buf.Put()
		target = string(buf.Data()[:min(int(i.d.Size), len(buf.Data()))])
		return nil
	})
	return target, err
}
