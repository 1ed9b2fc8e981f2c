package attrs

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// Values of attributes that are inodes (ea_inode; [layout] Extended Attributes): one inode holds one value, for all
// entries with that value. It counts them: its time of change and its version together are the number of references, each of a
// body or of a block, however many inodes share that. A value that fits neither body nor block gets an inode; we never look for one
// that has the same value.
//
// An inode that has such values counts their blocks in its own i_blocks.

// eaCount is how often entries refer to each inode of a value.
type eaCount map[uint32]int

func (c eaCount) add(attrs []xattr.Attr, n int) {
	for k := range attrs {
		if attrs[k].ValueInum != 0 {
			c[attrs[k].ValueInum] += n
		}
	}
}

// eaValue reads the value of a. The inode that holds it has no name, so no operation holds its lock and waits for
// another.
func eaValue(i *volume.Inode, a xattr.Attr) ([]byte, error) {
	v, err := i.FS.Get(a.ValueInum)
	if err != nil {
		return nil, err
	}
	defer v.Put()
	if v == i || v.Disk.Flags&disk.FlEAInode == 0 || v.Disk.Size != uint64(a.ValueSize) {
		return nil, disk.Corrupt(volume.InodeName(i.Ino()), "inode %d does not hold the attribute's %d bytes", v.Ino(), a.ValueSize)
	}
	d, err := contents.Read(v, 0, int(a.ValueSize))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	// The time of access is a checksum of the value, but in Lustre's, which say whose they are.
	sum, theirs := disk.CRC32C(i.FS.Seed, d.Bytes()), uint32(v.Disk.Mtime.Sec) == i.Ino() && v.Disk.Generation == i.Disk.Generation
	if sum != uint32(v.Disk.Atime.Sec) && !theirs {
		return nil, disk.Corrupt(volume.InodeName(v.Ino()), "value's checksum is %#08x, should be %#08x", uint32(v.Disk.Atime.Sec), sum)
	}
	return append([]byte{}, d.Bytes()...), nil
}

// eaBlocks is how many blocks the values in s take that lie in inodes of their own.
func eaBlocks(v *volume.FS, s *xattr.Set) (n int64) {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if part[k].ValueInum != 0 {
				n += (int64(part[k].ValueSize) + int64(v.BlockSize) - 1) >> v.BlockBits
			}
		}
	}
	return n
}

// changeEAInodes brings reference counts up to date before the attributes of i become s, nil for none. An inode without
// references is an orphan then, which its last Put frees when the operation has ended.
func changeEAInodes(i *volume.Inode, o *volume.Op, s *xattr.Set) error {
	if !i.FS.Super.FeatureIncompat.Has(disk.IncompatEAInode) {
		_, err := i.ParseXattrs() // which refuses values that are inodes
		return err
	}
	o.LockShared()
	old, err := i.ParseXattrs()
	if err != nil {
		return err
	}
	count := eaCount{}
	count.add(old.Body, -1)
	if shared, err := sharesXattrBlock(i); err != nil {
		return err
	} else if !shared {
		count.add(old.Block, -1)
	}
	blocks := -eaBlocks(i.FS, old)
	if s != nil {
		count.add(s.Body, 1)
		count.add(s.Block, 1)
		blocks += eaBlocks(i.FS, s)
	}
	contents.AddBlocks(i, blocks)
	for ino, n := range count {
		if n == 0 {
			continue
		}
		if err := countEAInode(i, o, ino, n); err != nil {
			return err
		}
	}
	return nil
}

func sharesXattrBlock(i *volume.Inode) (bool, error) {
	if i.Disk.FileACL == 0 {
		return false, nil
	}
	blk, err := i.XattrBlock()
	if err != nil {
		return false, err
	}
	defer blk.Put()
	return xattr.Refcount(blk.Data()) > 1, nil
}

// countEAInode changes the number of references to a value by n. Only these members of the inode change, and
// FS.sharedXattr protects them: its Mu cannot be taken under a handle.
func countEAInode(i *volume.Inode, o *volume.Op, ino uint32, n int) error {
	v, err := i.FS.Get(ino)
	if err != nil {
		return err
	}
	o.Later(v.Put)
	o.LockShared()
	d := &v.Disk
	if d.Flags&disk.FlEAInode == 0 || d.LinksCount == 0 {
		return disk.Corrupt(volume.InodeName(i.Ino()), "inode %d does not hold an attribute", ino)
	}
	refs := int64(d.Ctime.Sec)<<32 | int64(uint32(d.Version))
	if refs += int64(n); refs < 0 {
		return disk.Corrupt(volume.InodeName(ino), "holds an attribute for more entries than it counts")
	}
	old := *d
	o.Handle.OnUndo(func() { *d = old })
	d.Ctime = disk.Timestamp{Sec: refs >> 32}
	d.Version = d.Version>>32<<32 | uint64(uint32(refs))
	if refs == 0 {
		d.LinksCount = 0
		if err := i.FS.AddOrphan(o, v); err != nil {
			return err
		}
	}
	return v.Store(o)
}

// putXattr puts an attribute into s, with an inode of its own for the value if that is too large for body and block.
func putXattr(i *volume.Inode, s *xattr.Set, a xattr.Attr, c xattr.Condition) error {
	_, err := s.Put(a, c)
	if errors.Is(err, xattr.ErrNoSpace) && i.FS.Super.FeatureIncompat.Has(disk.IncompatEAInode) && len(a.Value) > 0 {
		_, err = s.Put(a.Moved(disk.CRC32C(i.FS.Seed, a.Value)), c)
	}
	if errors.Is(err, xattr.ErrNoSpace) {
		err = fmt.Errorf("%w: %w", volume.ErrNoSpace, err)
	}
	return err
}

// eaCredits is what making inodes for values takes that a change of attributes does not.
func eaCredits(s *xattr.Set) (n int) {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if part[k].Moves {
				n += CreateCredits + contents.MaxExtentsPerHandle*contents.CreditsPerExtent
			}
		}
	}
	return n
}

// makeEAInodes makes an inode for each value of s that is to have one.
func makeEAInodes(i *volume.Inode, o *volume.Op, s *xattr.Set) error {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if !part[k].Moves {
				continue
			}
			v, err := makeEAInode(i, o, part[k].Value)
			if err != nil {
				return err
			}
			part[k].ValueInum = v.Ino()
		}
	}
	return nil
}

// makeEAInode makes an inode that holds a value, with no references yet.
func makeEAInode(i *volume.Inode, o *volume.Op, value []byte) (*volume.Inode, error) {
	v, err := New(i, o, disk.ModeReg|0o600, i.Disk.UID, i.Disk.GID)
	if err != nil {
		return nil, err
	}
	o.OnDone(func() { o.Later(v.Put) })
	v.Disk.GID = i.Disk.GID
	v.Disk.Flags = v.Disk.Flags&disk.FlExtents | disk.FlEAInode
	v.Disk.Projid = 0
	v.Disk.Atime = disk.Timestamp{Sec: int64(disk.CRC32C(i.FS.Seed, value))}
	v.Disk.Ctime, v.Disk.Version = disk.Timestamp{}, 0
	v.Disk.Size = uint64(len(value))
	buf, err := i.FS.Dev.Alloc((len(value) + i.FS.BlockSize - 1) >> i.FS.BlockBits << i.FS.BlockBits)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	clear(buf.Bytes()[copy(buf.Bytes(), value):])
	for l, end := uint32(0), i.FS.LogicalEnd(int64(len(value))); l < end; {
		b, n, err := contents.AllocBlocks(v, o, contents.BlockGoal(v, l), end-l)
		if err != nil {
			return nil, err
		}
		size := int(n) << i.FS.BlockBits
		i.FS.Counters.DataWritten.Add(int64(size))
		if err := i.FS.Dev.Write(blockdev.Bytes(b)<<i.FS.BlockBits, false, buf.Slice(int(l)<<i.FS.BlockBits, size)); err != nil {
			return nil, err
		}
		if _, err := contents.Tree(v, o).Insert(extent.Extent{Lblk: l, Len: n, Pblk: b}); err != nil {
			return nil, err
		}
		l += n
	}
	return v, v.Store(o)
}
