package dir

import "github.com/lanefs/lanefs/fs/ext4/disk"

// Inline is a directory whose entries are inside its inode ([layout] Inline Directories): the number of its parent,
// then entries in i_block and, behind them, in the value of the attribute system.data. It has no "." and "..", no
// index and no checksum of its own. It can be read only.
type Inline struct {
	Dir   *Dir
	Block []byte // i_block
	More  []byte // the value of system.data, may be empty
}

// inlineHeader is the parent's number at the start of i_block.
const inlineHeader = 4

// InlineDir describes the directory ino of a volume, for Inline.
func InlineDir(s *disk.Superblock, ino uint32) *Dir {
	return &Dir{ino: ino, blockSize: s.BlockSize(), inodes: s.InodesCount, filetype: s.FeatureIncompat.Has(disk.IncompatFiletype)}
}

// each calls fn with the entries and where they and their successors are, as offsets into i_block and what follows.
func (n *Inline) each(fn func(e Entry, off, next int) bool) error {
	base := 0
	for i, part := range [...][]byte{n.Block, n.More} {
		off := 0
		if i == 0 {
			off = inlineHeader
		}
		for off < len(part) {
			r, why := n.Dir.rec(part, off, len(part))
			if why != "" {
				return n.Dir.corrupt(0, base+off, "inline entry: %s", why)
			}
			if r.ino != 0 {
				e := n.Dir.entry(part, off, r)
				if badName(e.Name) {
					return n.Dir.corrupt(0, base+off, "name %q cannot be", e.Name)
				}
				if !fn(e, base+off, base+off+r.size) {
					return nil
				}
			}
			off += r.size
		}
		base += len(part)
	}
	return nil
}

// parent is the directory above.
func (n *Inline) parent() (uint32, error) {
	p := le.Uint32(n.Block)
	if p == 0 || p > n.Dir.inodes {
		return 0, n.Dir.corrupt(0, 0, "parent is inode %d", p)
	}
	return p, nil
}

// Lookup is Dir.Lookup.
func (n *Inline) Lookup(name string) (ino uint32, ft uint8, err error) {
	switch name {
	case ".":
		return n.Dir.ino, FTDir, nil
	case "..":
		ino, err = n.parent()
		return ino, FTDir, err
	}
	err = n.each(func(e Entry, _, _ int) bool {
		if string(e.Name) == name {
			ino, ft = e.Ino, e.Type
		}
		return ino == 0
	})
	if err == nil && ino == 0 {
		err = ErrNotExist
	}
	return ino, ft, err
}

// Empty is Dir.Empty.
func (n *Inline) Empty() (bool, error) {
	empty := true
	err := n.each(func(Entry, int, int) bool {
		empty = false
		return false
	})
	return empty, err
}

// Read is Dir.Read. Cookies are 1 behind ".", 2 behind "..", then offsets of the next entry, all above 4.
func (n *Inline) Read(cookie uint64, fn func(e Entry, next uint64) bool) error {
	if cookie < 1 && !fn(Entry{Name: []byte("."), Ino: n.Dir.ino, Type: FTDir}, 1) {
		return nil
	}
	if cookie < 2 {
		p, err := n.parent()
		if err != nil || !fn(Entry{Name: []byte(".."), Ino: p, Type: FTDir}, 2) {
			return err
		}
	}
	return n.each(func(e Entry, off, next int) bool {
		return uint64(off) < cookie || fn(e, uint64(next))
	})
}
