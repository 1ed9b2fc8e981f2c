package ext4

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
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

// eaValue reads the value of a. The inode that holds it has no name, so nobody else takes more than its lock alone.
func (i *Inode) eaValue(a xattr.Attr) ([]byte, error) {
	v, err := i.fs.get(a.ValueInum)
	if err != nil {
		return nil, err
	}
	defer v.Put()
	if v == i || v.d.Flags&disk.FlEAInode == 0 || v.d.Size != uint64(a.ValueSize) {
		return nil, disk.Corrupt(inodeName(i.Ino()), "inode %d does not hold the attribute's %d bytes", v.Ino(), a.ValueSize)
	}
	d, err := v.Read(0, int(a.ValueSize))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	// The time of access is a checksum of the value, but in Lustre's, which say whose they are.
	sum, theirs := disk.CRC32C(i.fs.seed, d.Bytes()), uint32(v.d.Mtime.Sec) == i.Ino() && v.d.Generation == i.d.Generation
	if sum != uint32(v.d.Atime.Sec) && !theirs {
		return nil, disk.Corrupt(inodeName(v.Ino()), "value's checksum is %#08x, should be %#08x", uint32(v.d.Atime.Sec), sum)
	}
	return append([]byte{}, d.Bytes()...), nil
}

// eaBlocks is how many blocks the values of all attributes in s take that are inodes.
func (v *FS) eaBlocks(s *xattr.Set) (n int64) {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if part[k].ValueInum != 0 {
				n += (int64(part[k].ValueSize) + int64(v.bs) - 1) >> v.bits
			}
		}
	}
	return n
}

// changeEAInodes brings reference counts up to date before the attributes of i become s, nil for none. An inode without
// references is an orphan then, which its last Put frees when the operation has ended.
func (i *Inode) changeEAInodes(o *op, s *xattr.Set) error {
	if !i.fs.sb.FeatureIncompat.Has(disk.IncompatEAInode) {
		_, err := i.parseXattrs() // which refuses values that are inodes
		return err
	}
	o.lockShared()
	old, err := i.parseXattrs()
	if err != nil {
		return err
	}
	count := eaCount{}
	count.add(old.Body, -1)
	if shared, err := i.sharesXattrBlock(); err != nil {
		return err
	} else if !shared {
		count.add(old.Block, -1)
	}
	blocks := -i.fs.eaBlocks(old)
	if s != nil {
		count.add(s.Body, 1)
		count.add(s.Block, 1)
		blocks += i.fs.eaBlocks(s)
	}
	i.addBlocks(blocks)
	for ino, n := range count {
		if n == 0 {
			continue
		}
		if err := i.countEAInode(o, ino, n); err != nil {
			return err
		}
	}
	return nil
}

func (i *Inode) sharesXattrBlock() (bool, error) {
	if i.d.FileACL == 0 {
		return false, nil
	}
	blk, err := i.xattrBlock()
	if err != nil {
		return false, err
	}
	defer blk.Put()
	return xattr.Refcount(blk.Data()) > 1, nil
}

// countEAInode changes the number of references to a value by n. The inode's members but these are constant, and these
// are protected by sharedXattr: its mu comes before a handle.
func (i *Inode) countEAInode(o *op, ino uint32, n int) error {
	v, err := i.fs.get(ino)
	if err != nil {
		return err
	}
	o.later(v.Put)
	o.lockShared()
	d := &v.d
	if d.Flags&disk.FlEAInode == 0 || d.LinksCount == 0 {
		return disk.Corrupt(inodeName(i.Ino()), "inode %d does not hold an attribute", ino)
	}
	refs := int64(d.Ctime.Sec)<<32 | int64(uint32(d.Version))
	if refs += int64(n); refs < 0 {
		return disk.Corrupt(inodeName(ino), "holds an attribute for more entries than it counts")
	}
	old := *d
	o.h.OnUndo(func() { *d = old })
	d.Ctime = disk.Timestamp{Sec: refs >> 32}
	d.Version = d.Version>>32<<32 | uint64(uint32(refs))
	if refs == 0 {
		d.LinksCount = 0
		if err := i.fs.addOrphan(o, v); err != nil {
			return err
		}
	}
	return v.store(o)
}

// putXattr puts an attribute into s, with an inode of its own for the value if that is too large for body and block.
func (i *Inode) putXattr(s *xattr.Set, a xattr.Attr, c xattr.Condition) error {
	_, err := s.Put(a, c)
	if errors.Is(err, xattr.ErrNoSpace) && i.fs.sb.FeatureIncompat.Has(disk.IncompatEAInode) && len(a.Value) > 0 {
		_, err = s.Put(a.Moved(disk.CRC32C(i.fs.seed, a.Value)), c)
	}
	if errors.Is(err, xattr.ErrNoSpace) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// eaCredits is what making inodes for values takes that a change of attributes does not.
func eaCredits(s *xattr.Set) (n int) {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if part[k].Moves {
				n += createCredits + maxExtentsPerHandle*creditsPerExtent
			}
		}
	}
	return n
}

// makeEAInodes makes an inode for each value of s that is to have one.
func (i *Inode) makeEAInodes(o *op, s *xattr.Set) error {
	for _, part := range [...][]xattr.Attr{s.Body, s.Block} {
		for k := range part {
			if !part[k].Moves {
				continue
			}
			v, err := i.makeEAInode(o, part[k].Value)
			if err != nil {
				return err
			}
			part[k].ValueInum = v.Ino()
		}
	}
	return nil
}

// makeEAInode makes an inode that holds a value, for nobody yet.
func (i *Inode) makeEAInode(o *op, value []byte) (*Inode, error) {
	v, err := i.newInode(o, disk.ModeReg|0o600, i.d.UID, i.d.GID)
	if err != nil {
		return nil, err
	}
	o.onDone(func() { o.later(v.Put) })
	v.d.GID = i.d.GID
	v.d.Flags = v.d.Flags&disk.FlExtents | disk.FlEAInode
	v.d.Projid = 0
	v.d.Atime = disk.Timestamp{Sec: int64(disk.CRC32C(i.fs.seed, value))}
	v.d.Ctime, v.d.Version = disk.Timestamp{}, 0
	v.d.Size = uint64(len(value))
	buf, err := i.fs.dev.Alloc((len(value) + i.fs.bs - 1) >> i.fs.bits << i.fs.bits)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	clear(buf.Bytes()[copy(buf.Bytes(), value):])
	for l, end := uint32(0), i.fs.logicalEnd(int64(len(value))); l < end; {
		b, n, err := v.allocBlocks(o, v.blockGoal(l), end-l)
		if err != nil {
			return nil, err
		}
		size := int(n) << i.fs.bits
		i.fs.stats.dataWritten.Add(int64(size))
		if err := i.fs.dev.Write(blockdev.Bytes(b)<<i.fs.bits, false, buf.Slice(int(l)<<i.fs.bits, size)); err != nil {
			return nil, err
		}
		if _, err := v.tree(o).Insert(extent.Extent{Lblk: l, Len: n, Pblk: b}); err != nil {
			return nil, err
		}
		l += n
	}
	return v, v.store(o)
}
