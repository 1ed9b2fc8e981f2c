package recovery

import (
	"encoding/binary"
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// openLog maps the journal's inode. Groups are not loaded yet, so it is found by hand.
func (j *Journal) openLog() error {
	v := j.v
	i := v.Blank(v.Super.JournalInum)
	var err error
	if i.Disk, err = journalInode(v); err != nil && !journalBackup(v, &i.Disk) {
		return err
	}
	j.ino = i
	blocks := min(i.Disk.Size>>v.BlockBits, 1<<31)
	j.log, err = jbd2.OpenLog(v.Cache, uint32(blocks), func(n uint32) (b disk.Block, count uint32, err error) {
		err = contents.MapRange(i, n, n+1<<20, func(x extent.Extent) error {
			if !x.Hole() && !x.Unwritten {
				b, count = x.Pblk, x.Len
			}
			return errFound
		})
		if errors.Is(err, errFound) {
			err = nil
		}
		return b, count, err
	})
	return err
}

var errFound = errors.New("found")

// journalInode reads the journal's inode.
func journalInode(v *volume.FS) (d disk.Inode, err error) {
	ino := v.Super.JournalInum
	if !v.Super.ValidIno(ino) {
		return d, disk.Corrupt("superblock", "the journal would be inode %d of %d", ino, v.Super.InodesCount)
	}
	group, block, off := v.Super.InodeLocation(ino)
	descBlock, descOff := v.Super.DescLocation(group)
	buf, err := v.Cache.Get(disk.Block(v.Super.DescBlock(descBlock)))
	if err != nil {
		return d, err
	}
	desc, err := v.Super.ReadGroup(group, buf.Data()[descOff:]) // the log may mend the rest
	buf.Put()
	if err != nil {
		return d, err
	}
	if buf, err = v.Cache.Get(disk.Block(desc.InodeTable) + disk.Block(block)); err != nil {
		return d, err
	}
	defer buf.Put()
	slot := buf.Data()[off : off+int(v.Super.InodeSize)]
	if d, err = v.Super.DecodeInode(ino, slot); err != nil {
		return d, err
	}
	if err := v.Super.VerifyInode(ino, &d, slot); err != nil {
		return d, err
	}
	if !d.IsReg() || d.LinksCount == 0 {
		return d, disk.Corrupt(volume.InodeName(ino), "is not the journal: mode %#o, %d links", d.Mode, d.LinksCount)
	}
	return d, nil
}

// journalBackup is journalInode from the copy of i_block and i_size that the superblock has (s_jnl_blocks): the inode
// itself may be one of those that only the log has. It reports false where there is no copy.
func journalBackup(v *volume.FS, d *disk.Inode) bool {
	b := &v.Super.JnlBlocks
	if v.Super.JnlBackupType != 1 || b[16] == 0 {
		return false
	}
	*d = disk.Inode{Mode: disk.ModeReg | 0o600, LinksCount: 1, Size: uint64(b[15])<<32 | uint64(b[16])}
	for k := range disk.InodeBlockSize / 4 {
		binary.LittleEndian.PutUint32(d.Block[4*k:], b[k])
	}
	if _, err := disk.DecodeExtentHeader("", d.Block[:]); err == nil {
		d.Flags |= disk.FlExtents
	}
	return true
}
