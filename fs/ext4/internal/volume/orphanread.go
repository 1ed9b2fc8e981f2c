package volume

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// ReadOrphanList follows s_last_orphan.
func (v *FS) ReadOrphanList() ([]*Inode, error) {
	var found []*Inode
	seen := map[uint32]bool{}
	for ino := v.Super.LastOrphan; ino != 0; {
		if seen[ino] || ino < v.Super.FirstIno {
			return found, disk.Corrupt("orphan list", "inode %d cannot be there", ino)
		}
		seen[ino] = true
		i, err := v.Get(ino)
		if err != nil {
			return found, fmt.Errorf("orphan list: %w", err)
		}
		next := i.Disk.Dtime
		i.nextOrphan.Store(int64(next))
		i.orphan = orphanPlace{kind: orphanOnList}
		found = append(found, i)
		ino = next
	}
	o := &v.orphans
	for k := len(found) - 1; k >= 0; k-- {
		o.list = append(o.list, found[k])
	}
	o.n += len(found)
	return found, nil
}

// UseOrphanFile has orphans be recorded in the blocks of the orphan file, and collects those that are in it. With an error
// it returns what was found before it.
func (v *FS) UseOrphanFile(seed uint32, blocks []disk.Block) ([]*Inode, error) {
	const largest = 512 // blocks, that mke2fs makes; of more, which a damaged volume may claim, each is checked before there is memory for it
	f := &orphanFile{seed: seed, blocks: blocks, free: make([]orphanPlace, 0, min(len(blocks), largest)*v.Super.OrphansPerBlock())}
	v.orphans.file = f
	var found []*Inode
	for b, blk := range f.blocks {
		ins, err := v.readOrphanBlock(f, b, blk)
		found = append(found, ins...)
		if err != nil {
			return found, err
		}
	}
	v.orphans.n += len(found)
	return found, nil
}

func (v *FS) readOrphanBlock(f *orphanFile, b int, blk disk.Block) ([]*Inode, error) {
	buf, err := v.Cache.Get(blk)
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	if err := v.Super.VerifyOrphanBlock(f.seed, uint64(blk), buf.Data()); err != nil {
		return nil, err
	}
	var found []*Inode
	for slot := v.Super.OrphansPerBlock() - 1; slot >= 0; slot-- {
		p := orphanPlace{uint32(b), uint16(slot), orphanInFile}
		ino := disk.GetOrphan(buf.Data(), slot)
		if ino == 0 {
			f.free = append(f.free, p)
			continue
		}
		if ino < v.Super.FirstIno {
			return found, disk.Corrupt("orphan file", "inode %d cannot be there", ino)
		}
		i, err := v.Get(ino)
		if err != nil {
			return found, fmt.Errorf("orphan file: %w", err)
		}
		i.orphan = p
		found = append(found, i)
	}
	return found, nil
}
