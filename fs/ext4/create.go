package ext4

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

const (
	maxName  = 255
	maxLinks = 65000 // [layout] Directory Entries, EXT4_LINK_MAX

	// createCredits: inode bitmap, its descriptor, inode, parent, directory block and index path, one new block with
	// bitmap and descriptor, orphan, superblock.
	createCredits = 32
)

// S_ISGID and the like, as in stat(2).
const (
	modeSetGID = 0o2000
	modePerm   = 0o7777
)

func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return ErrNameTooLong
	case name == "", name == ".", name == "..":
		return ErrInvalid
	}
	return nil
}

// writableDir refuses what a directory cannot take. mu is held.
func (i *Inode) writableDir() error {
	switch {
	case !i.d.IsDir():
		return ErrNotDir
	case i.d.LinksCount == 0:
		return ErrNotExist // removed while open
	case i.d.Flags&disk.FlImmutable != 0:
		return ErrPerm
	}
	return nil
}

// Create makes a file of the kind that mode says: regular, fifo, socket, or a device with the given number.
func (i *Inode) Create(name string, mode, uid, gid, major, minor uint32, with ...With) (*Inode, error) {
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		n, err := i.newInode(o, uint16(mode), uid, gid)
		if err == nil && n.d.IsDevice() && !n.d.SetDevice(major, minor) {
			err = ErrInvalid
		}
		return n, err
	})
}

// Symlink makes a symbolic link. A target of less than 60 bytes lies in the inode itself, a longer one in a block.
func (i *Inode) Symlink(name, target string, uid, gid uint32, with ...With) (*Inode, error) {
	if target == "" {
		return nil, ErrNotExist
	}
	if len(target) >= i.fs.bs || len(target) >= 4096 {
		return nil, ErrNameTooLong
	}
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		n, err := i.newInode(o, disk.ModeLink|0o777, uid, gid)
		if err != nil {
			return nil, err
		}
		n.d.Size = uint64(len(target))
		if len(target) < disk.InodeBlockSize {
			n.d.Flags &^= disk.FlExtents
			clear(n.d.Block[:])
			copy(n.d.Block[:], target)
			return n, nil
		}
		buf, err := n.appendMeta(o, 0)
		if err != nil {
			return nil, err
		}
		defer buf.Put()
		buf.Lock()
		copy(buf.Data(), target)
		o.h.Dirty(buf)
		buf.Unlock()
		return n, nil
	})
}

// Mkdir makes a directory.
func (i *Inode) Mkdir(name string, mode, uid, gid uint32, with ...With) (*Inode, error) {
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		if i.d.LinksCount >= maxLinks && !i.fs.sb.FeatureROCompat.Has(disk.ROCompatDirNlink) {
			return nil, ErrTooManyLink
		}
		n, err := i.newInode(o, disk.ModeDir|uint16(mode&modePerm), uid, gid)
		if err != nil {
			return nil, err
		}
		n.d.LinksCount = 2
		return n, n.dirInit(o, i.ino)
	})
}

// make runs f for a new inode and gives it a name.
func (i *Inode) make(name string, m making, f func(o *op) (*Inode, error)) (n *Inode, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	err = i.fs.change(m.may, func(o *op) error {
		o.lock(i)
		if err := i.nameFree(name); err != nil {
			return err
		}
		return o.do(m.credits(), func() (err error) {
			if n, err = f(o); err != nil {
				return err
			}
			if err := n.putNewXattrs(o, m.xattrs); err != nil {
				return err
			}
			if err := i.dirInsert(o, name, n.ino, n.d.Mode); err != nil {
				return err
			}
			if n.d.IsDir() {
				i.addDirLink()
			}
			i.touch(time.Now())
			if err := n.store(o); err != nil {
				return err
			}
			return i.store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// nameFree refuses a name that the directory can't take. mu is held.
func (i *Inode) nameFree(name string) error {
	if err := i.writableDir(); err != nil {
		return err
	}
	switch _, _, err := i.dirLookup(name); {
	case err == nil:
		return ErrExist
	case !errors.Is(err, ErrNotExist):
		return err
	}
	return i.dirDamage()
}

// addDirLink counts one more subdirectory. More than the format can count are not counted: 1 says so.
func (i *Inode) addDirLink() {
	if i.d.LinksCount == 1 {
		return
	}
	if i.d.LinksCount++; i.d.LinksCount > maxLinks {
		i.d.LinksCount = 1
	}
}

func (i *Inode) removeDirLink() {
	if i.d.LinksCount > 2 {
		i.d.LinksCount--
	}
}

// Tmpfile makes a regular file without a name in the directory: an orphan until it is linked.
func (i *Inode) Tmpfile(mode, uid, gid uint32, with ...With) (n *Inode, err error) {
	m := makingOf(with)
	err = i.fs.change(m.may, func(o *op) error {
		o.lock(i)
		if err := i.writableDir(); err != nil {
			return err
		}
		return o.do(m.credits(), func() (err error) {
			if n, err = i.newInode(o, disk.ModeReg|uint16(mode&modePerm), uid, gid); err != nil {
				return err
			}
			if err := n.putNewXattrs(o, m.xattrs); err != nil {
				return err
			}
			n.d.LinksCount = 0
			if err := i.fs.addOrphan(o, n); err != nil {
				return err
			}
			return n.store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// newInode allocates an inode for the directory i and fills in what is the same for every kind. Nobody else sees it
// before it is stored and has a name, so its mu is not taken.
func (i *Inode) newInode(o *op, mode uint16, uid, gid uint32) (*Inode, error) {
	isDir := mode&disk.ModeFmt == disk.ModeDir
	if i.d.Mode&modeSetGID != 0 {
		gid = i.d.GID
		if isDir {
			mode |= modeSetGID
		}
	}
	v := i.fs
	ino, err := v.alloc.AllocInode(o.h, i.ino, isDir)
	if errors.Is(err, alloc.ErrNoInodes) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	if err != nil {
		return nil, err
	}
	now := disk.TimestampOf(time.Now())
	n := v.blank(ino)
	n.once.Do(func() {}) // there is nothing to load
	n.refs = 1
	n.making = true
	n.d = disk.Inode{
		Mode: mode, UID: uid, GID: gid, LinksCount: 1,
		Atime: now, Ctime: now, Mtime: now, Crtime: now,
		Flags:      disk.InheritedFlags(mode, i.d.Flags),
		Generation: rand.Uint32(),
	}
	if v.sb.InodeSize > disk.InodeSizeRev0 {
		n.d.ExtraIsize = min(max(v.sb.WantExtraIsize, disk.ExtraIsizeAll), v.sb.InodeSize-disk.InodeSizeRev0)
	}
	if n.d.HasProjid() && i.d.Flags&disk.FlProjinherit != 0 {
		n.d.Projid = i.d.Projid
	}
	if isDir || n.d.IsReg() || n.d.IsLink() {
		n.formatTree()
	}
	// What an earlier inode left in the slot goes.
	if err := o.changeSlot(n, func(slot []byte) { clear(slot) }); err != nil {
		return nil, err
	}
	v.inodes.enter(n)
	o.h.OnUndo(func() { v.inodes.remove(n) })
	o.onDone(n.made)
	return n, nil
}

// appendMeta adds a block of metadata at the end of what i_block maps, logical block l.
func (i *Inode) appendMeta(o *op, l uint32) (*jbd2.Buffer, error) {
	if x, err := i.tree(nil).Map(l, 1); err != nil || !x.Hole() {
		if err == nil {
			err = disk.Corrupt(inodeName(i.ino), "block %d lies past the end and is mapped to %d", l, x.Pblk)
		}
		return nil, err
	}
	b, n, err := i.allocBlocks(o, i.blockGoal(l), 1)
	if err != nil {
		return nil, err
	}
	if _, err := i.tree(o).Insert(extent.Extent{Lblk: l, Len: n, Pblk: b}); err != nil {
		return nil, err
	}
	return o.newBlock(b)
}

// Readlink reports the target of a symbolic link.
func (i *Inode) Readlink() (_ string, err error) {
	defer i.fs.noteTo(&err)
	i.mu.RLock()
	defer i.endRead()
	switch {
	case !i.d.IsLink():
		return "", ErrInvalid
	case i.inline():
		if i.d.Size >= maxInline {
			return "", disk.Corrupt(inodeName(i.ino), "symbolic link of %d bytes in its inode", i.d.Size)
		}
		c, err := i.inlineContent()
		if err != nil {
			return "", err
		}
		b := make([]byte, i.d.Size)
		c.read(0, b)
		return string(b), nil
	case i.fastSymlink():
		if i.d.Size >= disk.InodeBlockSize {
			return "", disk.Corrupt(inodeName(i.ino), "symbolic link of %d bytes without a block", i.d.Size)
		}
		return string(i.d.Block[:i.d.Size]), nil
	}
	var target string
	err = i.mapRange(0, 1, func(x extent.Extent) error {
		if x.Hole() {
			return disk.Corrupt(inodeName(i.ino), "symbolic link without a block")
		}
		buf, err := i.fs.cache.Get(x.Pblk)
		if err != nil {
			return err
		}
		defer buf.Put()
		target = string(buf.Data()[:min(int(i.d.Size), len(buf.Data()))])
		return nil
	})
	return target, err
}
