package ext4

import (
	"encoding/binary"
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// openLog maps the journal's inode. Groups are not loaded yet, so it is found by hand.
func (j *Journal) openLog() error {
	v := j.v
	i := v.blank(v.sb.JournalInum)
	var err error
	if i.d, err = v.journalInode(); err != nil && !v.journalBackup(&i.d) {
		return err
	}
	j.ino = i
	blocks := min(i.d.Size>>v.bits, 1<<31)
	j.log, err = jbd2.OpenLog(v.cache, uint32(blocks), func(n uint32) (b jbd2.Block, count uint32, err error) {
		err = i.mapRange(n, n+1<<20, func(x extent.Extent) error {
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
func (v *FS) journalInode() (d disk.Inode, err error) {
	ino := v.sb.JournalInum
	if !v.sb.ValidIno(ino) {
		return d, disk.Corrupt("superblock", "the journal would be inode %d of %d", ino, v.sb.InodesCount)
	}
	group, block, off := v.sb.InodeLocation(ino)
	descBlock, descOff := v.sb.DescLocation(group)
	buf, err := v.cache.Get(jbd2.Block(v.sb.DescBlock(descBlock)))
	if err != nil {
		return d, err
	}
	desc, err := v.sb.ReadGroup(group, buf.Data()[descOff:]) // the log may mend the rest
	buf.Put()
	if err != nil {
		return d, err
	}
	if buf, err = v.cache.Get(jbd2.Block(desc.InodeTable) + jbd2.Block(block)); err != nil {
		return d, err
	}
	defer buf.Put()
	slot := buf.Data()[off : off+int(v.sb.InodeSize)]
	if d, err = v.sb.DecodeInode(ino, slot); err != nil {
		return d, err
	}
	if err := v.sb.VerifyInode(ino, &d, slot); err != nil {
		return d, err
	}
	if !d.IsReg() || d.LinksCount == 0 {
		return d, disk.Corrupt(inodeName(ino), "is not the journal: mode %#o, %d links", d.Mode, d.LinksCount)
	}
	return d, nil
}

// journalBackup is journalInode from the copy of i_block and i_size that the superblock has (s_jnl_blocks): the inode
// itself may be one of those that only the log has. It reports false where there is no copy.
func (v *FS) journalBackup(d *disk.Inode) bool {
	b := &v.sb.JnlBlocks
	if v.sb.JnlBackupType != 1 || b[16] == 0 {
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
