package iofault

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// medium is a copy of a device's content. It is not changed.
type medium struct {
	size, lba int64
	parts     []part // what is not a hole
}

type part struct {
	off int64
	b   []byte
}

// readMedium copies the content of f.
func readMedium(f *os.File, lba int64) (*medium, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m := &medium{size: st.Size() / lba * lba, lba: lba}
	err = sparse.Data(f, m.size, func(off, n int64) error {
		p := part{off, make([]byte, n)}
		if _, err := f.ReadAt(p.b, off); err != nil && err != io.EOF {
			return err
		}
		m.parts = append(m.parts, p)
		return nil
	})
	return m, err
}

// device returns a new device in memory with a copy of the medium.
func (m *medium) device() *blockdev.TestDevice {
	d := blockdev.NewMem(m.size, m.lba)
	for _, p := range m.parts {
		if _, err := d.File().WriteAt(p.b, p.off); err != nil {
			panic(fmt.Sprintf("iofault: memory of a device: %v", err))
		}
	}
	return d
}

// superblock reads the superblock of an image.
func superblock(f *os.File) (*disk.Superblock, error) {
	b := make([]byte, disk.SuperblockSize)
	if _, err := f.ReadAt(b, disk.SuperblockOffset); err != nil {
		return nil, err
	}
	sb, err := disk.DecodeSuperblock(b)
	if err != nil {
		return nil, err
	}
	return sb, sb.VerifyChecksum()
}

// unmark clears the error mark in a superblock: e2fsck and the kernel finish orphans only without it.
func unmark(f *os.File) error {
	sb, err := superblock(f)
	if err != nil {
		return err
	}
	b := make([]byte, disk.SuperblockSize)
	if _, err := f.ReadAt(b, disk.SuperblockOffset); err != nil {
		return err
	}
	sb.State &^= disk.StateError
	sb.Encode(b)
	_, err = f.WriteAt(b, disk.SuperblockOffset)
	return err
}

// journalErrno returns the errno in the journal's superblock, 0 if the journal did not fail. It finds the journal by the copy
// of the journal's inode in the volume's superblock.
func journalErrno(f *os.File, sb *disk.Superblock) (int32, error) {
	b := make([]byte, disk.InodeBlockSize)
	for k := range len(b) / 4 {
		binary.LittleEndian.PutUint32(b[4*k:], sb.JnlBlocks[k])
	}
	at := uint64(binary.LittleEndian.Uint32(b))
	if h, err := disk.DecodeExtentHeader("journal", b); err == nil {
		if h.Depth > 0 || h.Entries == 0 {
			return 0, errors.New("the journal's first block is not found")
		}
		at = disk.GetExtent(b, 0).Start
	}
	const magic, errno = 0xc03b3998, 0x20 // journal_superblock_t ([jbd2] Superblock)
	j := make([]byte, 1024)
	if _, err := f.ReadAt(j, int64(at)*int64(sb.BlockSize())); err != nil {
		return 0, err
	}
	if m := binary.BigEndian.Uint32(j); m != magic {
		return 0, fmt.Errorf("the journal's first block begins with %#x", m)
	}
	return int32(binary.BigEndian.Uint32(j[errno:])), nil
}
