package dir

import "github.com/lanefs/lanefs/fs/ext4/disk"

// leafEnd is where a leaf's records end: before the checksum where there is one.
func (d *Dir) leafEnd() int {
	if d.csum {
		return d.blockSize - csumRecord
	}
	return d.blockSize
}

// get reads a block and insists on its size.
func (d *Dir) get(s Store, lblk uint32) (Block, error) {
	if lblk >= s.Blocks() {
		return nil, d.corrupt(lblk, 0, "directory has only %d blocks", s.Blocks())
	}
	b, err := s.Get(lblk)
	if err != nil {
		return nil, err
	}
	if len(b.Data()) != d.blockSize {
		panic("dir: a block of the wrong size")
	}
	return b, nil
}

// leaf reads a leaf and checks its checksum when it is first seen.
func (d *Dir) leaf(s Store, lblk uint32) (Block, error) {
	b, err := d.get(s, lblk)
	if err != nil || !d.csum {
		return b, err
	}
	if !b.Verified() {
		if err := d.verifyLeaf(lblk, b.Data()); err != nil {
			b.Put()
			return nil, err
		}
		b.SetVerified()
	}
	return b, nil
}

// verifyLeaf checks the record at the end of a leaf that holds its checksum ([layout] struct ext4_dir_entry_tail).
func (d *Dir) verifyLeaf(lblk uint32, data []byte) error {
	off := d.leafEnd()
	t := data[off:]
	if le.Uint32(t) != 0 || le.Uint16(t[4:]) != csumRecord || t[6] != 0 || t[7] != ftCsum {
		return d.corrupt(lblk, off, "no checksum record")
	}
	if got, want := le.Uint32(t[8:]), disk.CRC32C(d.seed, data[:off]); got != want {
		return d.corrupt(lblk, off, "checksum is %#08x, should be %#08x", got, want)
	}
	return nil
}

// leafChanged writes the checksum of a changed leaf and marks it dirty.
func (d *Dir) leafChanged(s Store, b Block) {
	if d.csum {
		data := b.Data()
		off := d.leafEnd()
		t := data[off:]
		le.PutUint32(t, 0)
		le.PutUint16(t[4:], csumRecord)
		t[6], t[7] = 0, ftCsum
		le.PutUint32(t[8:], disk.CRC32C(d.seed, data[:off]))
		b.SetVerified()
	}
	s.Dirty(b)
}

// findIn looks for a name among a leaf's records. prev is the record before it, -1 if it is the first; off is -1 if
// the name is not there.
func (d *Dir) findIn(lblk uint32, data []byte, name string) (off, prev int, err error) {
	end := d.leafEnd()
	prev = -1
	for off = 0; off < end; {
		r, why := d.rec(data, off, end)
		if why != "" {
			return -1, -1, d.corrupt(lblk, off, "%s", why)
		}
		if r.nameLen == len(name) && r.ino != 0 && string(data[off+recHeader:off+recHeader+r.nameLen]) == name {
			return off, prev, nil
		}
		prev = off
		off += r.size
	}
	return -1, -1, nil
}

// insertIn puts an entry into the first space of a leaf that is large enough. It reports false if there is none.
func (d *Dir) insertIn(s Store, b Block, lblk uint32, name string, ino uint32, ft uint8) (bool, error) {
	ok, off, why := d.insert(b.Data(), 0, d.leafEnd(), name, ino, ft, func() { s.Change(b) })
	if why != "" {
		return false, d.corrupt(lblk, off, "%s", why)
	}
	return ok, nil
}

// insert is insertIn for the records of data from off to end. It calls change before it changes any. why says what is wrong
// with the one at off, if anything.
func (d *Dir) insert(data []byte, off, end int, name string, ino uint32, ft uint8, change func()) (ok bool, at int, why string) {
	need := recSize(len(name))
	for off < end {
		r, why := d.rec(data, off, end)
		if why != "" {
			return false, off, why
		}
		used := 0
		if r.ino != 0 {
			used = recSize(r.nameLen)
		}
		if r.size-used >= need {
			change()
			if used > 0 {
				putRecLen(data[off:], used)
			}
			d.putRec(data[off+used:], r.size-used, name, ino, ft)
			return true, off + used, ""
		}
		off += r.size
	}
	return false, off, ""
}

// removeFrom takes the entry at off out of a leaf: the record before it grows over it, or it becomes free space.
func (d *Dir) removeFrom(data []byte, off, prev int) {
	size := getRecLen(data[off:], d.blockSize)
	used := recSize(int(data[off+6]))
	if prev < 0 {
		le.PutUint32(data[off:], 0)
		clear(data[off+6 : off+used])
		return
	}
	clear(data[off : off+used])
	putRecLen(data[prev:], off+size-prev)
}

// emptyLeaf makes the block a leaf that is one free record.
func (d *Dir) emptyLeaf(data []byte) {
	clear(data)
	putRecLen(data, d.leafEnd())
}
