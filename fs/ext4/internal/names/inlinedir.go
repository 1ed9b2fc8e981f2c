package names

import (
	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// inlineDir is the directory whose entries are in the inode. Mu is held.
func inlineDir(i *volume.Inode) (*dir.Inline, *contents.Inline, error) {
	c, err := contents.ReadInline(i)
	if err != nil {
		return nil, nil, err
	}
	return &dir.Inline{Dir: dir.InlineDir(i.FS.Super, i.Ino()), Block: i.Disk.Block[:], More: c.More}, c, nil
}

// put writes the directory back into the inode.
func put(c *contents.Inline, o *volume.Op, n *dir.Inline) error {
	return c.Write(o, append(append([]byte{}, n.Block...), n.More...))
}

// inlineDirInit makes the new directory i an inline one. It reports false if the inode has no room.
func inlineDirInit(i *volume.Inode, o *volume.Op, parent uint32) (bool, error) {
	if !i.FS.Super.FeatureIncompat.Has(disk.IncompatInlineData) {
		return false, nil
	}
	c, err := contents.ReadInline(i)
	if err != nil || c.Room() < 0 {
		return false, err
	}
	var block [disk.InodeBlockSize]byte
	dir.InitInline(block[:], parent)
	return true, c.Write(o, block[:])
}

// inlineDirInsert adds a name. It reports false if there is no room: then the directory has a block, and its old
// entries are there.
func inlineDirInsert(i *volume.Inode, o *volume.Op, name string, ino uint32, mode uint16) (bool, error) {
	n, c, err := inlineDir(i)
	if err != nil {
		return false, err
	}
	ok, err := n.Add(name, ino, dir.FTOf(mode), c.Room()-disk.InodeBlockSize)
	if err != nil {
		return false, err
	}
	if ok {
		return true, put(c, o, n)
	}
	old := i.Disk
	n.Block = old.Block[:]
	i.Disk.Flags &^= disk.FlInlineData
	i.Disk.Size = 0
	contents.FormatTree(i)
	l, err := layout(i)
	if err == nil {
		err = l.Outgrow(dirStore{i, o}, n)
	}
	if err != nil {
		return false, err
	}
	return false, c.Drop(o)
}
