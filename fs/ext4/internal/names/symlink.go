package names

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Symlink makes a symbolic link. A target of less than 60 bytes lies in the inode itself, a longer one in a block.
func Symlink(i *volume.Inode, name, target string, uid, gid uint32, with ...volume.With) (*volume.Inode, error) {
	if target == "" {
		return nil, volume.ErrNotExist
	}
	if len(target) >= i.FS.BlockSize || len(target) >= 4096 {
		return nil, volume.ErrNameTooLong
	}
	return create(i, name, volume.MakingOf(with), func(o *volume.Op) (*volume.Inode, error) {
		n, err := attrs.New(i, o, disk.ModeLink|0o777, uid, gid)
		if err != nil {
			return nil, err
		}
		n.Disk.Size = uint64(len(target))
		if len(target) < disk.InodeBlockSize {
			n.Disk.Flags &^= disk.FlExtents
			clear(n.Disk.Block[:])
			copy(n.Disk.Block[:], target)
			return n, nil
		}
		buf, err := contents.AppendMeta(n, o, 0)
		if err != nil {
			return nil, err
		}
		defer buf.Put()
		buf.Lock()
		copy(buf.Data(), target)
		o.Handle.Dirty(buf)
		buf.Unlock()
		return n, nil
	})
}

// Readlink reports the target of a symbolic link.
func Readlink(i *volume.Inode) (_ string, err error) {
	defer i.FS.NoteTo(&err)
	i.Mu.RLock()
	defer i.EndRead()
	switch {
	case !i.Disk.IsLink():
		return "", volume.ErrInvalid
	case i.IsInline():
		if i.Disk.Size >= contents.MaxInline {
			return "", disk.Corrupt(volume.InodeName(i.Ino()), "symbolic link of %d bytes in its inode", i.Disk.Size)
		}
		c, err := contents.ReadInline(i)
		if err != nil {
			return "", err
		}
		b := make([]byte, i.Disk.Size)
		c.Read(0, b)
		return string(b), nil
	case i.FastSymlink():
		if i.Disk.Size >= disk.InodeBlockSize {
			return "", disk.Corrupt(volume.InodeName(i.Ino()), "symbolic link of %d bytes without a block", i.Disk.Size)
		}
		return string(i.Disk.Block[:i.Disk.Size]), nil
	}
	var target string
	err = contents.MapRange(i, 0, 1, func(x extent.Extent) error {
		if x.Hole() {
			return disk.Corrupt(volume.InodeName(i.Ino()), "symbolic link without a block")
		}
		buf, err := i.ReadOwn(x.Pblk)
		if err != nil {
			return err
		}
		defer buf.Put()
		target = string(buf.Data()[:min(int(i.Disk.Size), len(buf.Data()))])
		return nil
	})
	return target, err
}
