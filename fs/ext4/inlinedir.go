package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// inlineDir is the directory whose entries are in the inode. mu is held.
func (i *Inode) inlineDir() (*dir.Inline, *inlineContent, error) {
	c, err := i.inlineContent()
	if err != nil {
		return nil, nil, err
	}
	return &dir.Inline{Dir: dir.InlineDir(i.fs.sb, i.Ino()), Block: i.d.Block[:], More: c.more}, c, nil
}

// put writes the directory back into the inode.
func (c *inlineContent) put(o *op, n *dir.Inline) error {
	return c.write(o, append(append([]byte{}, n.Block...), n.More...))
}

// inlineDirInit makes the new directory i an inline one. It reports false if the inode has no room.
func (i *Inode) inlineDirInit(o *op, parent uint32) (bool, error) {
	if !i.fs.sb.FeatureIncompat.Has(disk.IncompatInlineData) {
		return false, nil
	}
	c, err := i.inlineContent()
	if err != nil || c.room() < 0 {
		return false, err
	}
	var block [disk.InodeBlockSize]byte
	dir.InitInline(block[:], parent)
	return true, c.write(o, block[:])
}

// inlineDirInsert adds a name. It reports false if there is no room: then the directory has a block, and its old
// entries are there.
func (i *Inode) inlineDirInsert(o *op, name string, ino uint32, mode uint16) (bool, error) {
	n, c, err := i.inlineDir()
	if err != nil {
		return false, err
	}
	ok, err := n.Add(name, ino, dir.FTOf(mode), c.room()-disk.InodeBlockSize)
	if err != nil {
		return false, err
	}
	if ok {
		return true, c.put(o, n)
	}
	old := i.d
	n.Block = old.Block[:]
	i.d.Flags &^= disk.FlInlineData
	i.d.Size = 0
	i.formatTree()
	l, err := i.layout()
	if err == nil {
		err = l.Outgrow(dirStore{i, o}, n)
	}
	if err != nil {
		return false, err
	}
	return false, c.drop(o)
}
