package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Rename moves oldName of the directory i to newName of the directory to, replacing what is there unless flags say
// RenameNoReplace, or exchanging the two with RenameExchange.
//
// Locks: renameMu when two directories take part, so that the tree above them stands still; then the directories, an
// ancestor first; then what is moved and what is replaced.
func (i *Inode) Rename(oldName string, to *Inode, newName string, flags uint32, may ...May) error {
	if flags&RenameWhiteout != 0 {
		return ErrInvalid // whose would it be?
	}
	return i.rename(&rename{from: i, to: to, oldName: oldName, newName: newName, may: may}, flags)
}

// RenameWhiteout is Rename that leaves a whiteout at oldName, for the layers of an overlay: a character device 0,0, owned
// by uid and gid.
func (i *Inode) RenameWhiteout(oldName string, to *Inode, newName string, flags, uid, gid uint32, may ...May) error {
	r := &rename{from: i, to: to, oldName: oldName, newName: newName, may: may, uid: uid, gid: gid}
	return i.rename(r, flags|RenameWhiteout)
}

func (i *Inode) rename(r *rename, flags uint32) error {
	if err := errors.Join(checkName(r.oldName), checkName(r.newName)); err != nil {
		if errors.Is(err, ErrNameTooLong) {
			return ErrNameTooLong
		}
		return ErrInvalid
	}
	r.exchange, r.whiteout = flags&RenameExchange != 0, flags&RenameWhiteout != 0
	if flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 || r.exchange && flags != RenameExchange {
		return ErrInvalid
	}
	if !i.fs.writable() {
		return ErrReadOnly
	}
	return i.fs.change(r.may, func(o *op) error { return r.run(o, flags) })
}

type rename struct {
	from, to         *Inode
	oldName, newName string
	exchange         bool
	may              []May
	whiteout         bool
	uid, gid         uint32 // of the whiteout
	src, dst         *Inode // dst nil when nothing is replaced

	aboveFrom, aboveTo map[uint32]bool // directories between each and the root
}

func (r *rename) run(o *op, flags uint32) error {
	r.lockDirs(o)
	for _, d := range []*Inode{r.from, r.to} {
		if err := d.writableDir(); err != nil {
			return err
		}
	}
	if r.from.d.Flags&disk.FlAppend != 0 {
		return ErrPerm
	}
	var err error
	if r.src, err = r.from.lookup(r.oldName); err != nil {
		return err
	}
	o.later(r.src.Put)
	switch r.dst, err = r.to.lookup(r.newName); {
	case err == nil:
		o.later(r.dst.Put)
		if flags&RenameNoReplace != 0 {
			return ErrExist
		}
	case !errors.Is(err, ErrNotExist):
		return err
	case r.exchange:
		return ErrNotExist
	}
	for _, d := range []*Inode{r.from, r.to} {
		if err := d.dirDamage(); err != nil {
			return err
		}
	}
	if r.src == r.dst {
		return nil // two names of one file: both stay
	}
	if r.dst != nil && r.to.d.Flags&disk.FlAppend != 0 {
		return ErrPerm // new names may come in, but none may go
	}
	if err := r.checkLoops(); err != nil {
		return err
	}
	r.lockFiles(o)
	if err := r.check(); err != nil {
		return err
	}
	return o.do(2*createCredits, func() error { return r.apply(o) })
}

// lockDirs locks the directories, an ancestor first.
func (r *rename) lockDirs(o *op) {
	if r.from == r.to {
		o.lock(r.from)
		return
	}
	o.lockTree()
	v := r.from.fs
	r.aboveFrom, r.aboveTo = v.ancestors(r.from), v.ancestors(r.to)
	first, second := r.from, r.to
	if r.aboveFrom[r.to.Ino()] || !r.aboveTo[r.from.Ino()] && r.to.Ino() < r.from.Ino() {
		first, second = r.to, r.from
	}
	o.lock(first)
	o.lock(second)
}

// ancestors is the directories on the way from d up to the root. renameMu is held, so they stay what they are; no other
// lock is, for a directory is never locked before the one above it. A broken way ends the search.
func (v *FS) ancestors(d *Inode) map[uint32]bool {
	found := map[uint32]bool{}
	cur := d.Ref()
	defer func() { cur.Put() }()
	for cur.Ino() != disk.InoRoot {
		cur.mu.RLock()
		up, _, err := cur.dirLookup("..")
		cur.mu.RUnlock()
		if err != nil || found[up] {
			break
		}
		found[up] = true
		next, err := v.get(up)
		if err != nil {
			break
		}
		cur.Put()
		cur = next
	}
	return found
}

// checkLoops refuses to move a directory below itself, and to replace a directory that what is moved lies in.
func (r *rename) checkLoops() error {
	switch {
	case r.src == r.to || r.aboveTo[r.src.Ino()]:
		return ErrInvalid
	case r.dst == nil || r.dst != r.from && !r.aboveFrom[r.dst.Ino()]:
		return nil
	case r.exchange:
		return ErrInvalid
	}
	return ErrNotEmpty
}

// lockFiles locks what is moved and what is replaced.
func (r *rename) lockFiles(o *op) {
	a, b := r.src, r.dst
	if b == nil {
		o.lock(a)
		return
	}
	if b.Ino() < a.Ino() {
		a, b = b, a
	}
	o.lock(a)
	o.lock(b)
}

func (r *rename) check() error {
	if r.src.d.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
		return ErrPerm
	}
	if r.to.d.Flags&disk.FlProjinherit != 0 && r.to.d.Projid != r.src.d.Projid ||
		r.exchange && r.from.d.Flags&disk.FlProjinherit != 0 && r.from.d.Projid != r.dst.d.Projid {
		return ErrCrossDevice
	}
	dir := r.src.d.IsDir()
	if r.dst != nil {
		switch {
		case r.exchange:
			if r.dst.d.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
				return ErrPerm
			}
		case dir && !r.dst.d.IsDir():
			return ErrNotDir
		case !dir && r.dst.d.IsDir():
			return ErrIsDir
		default:
			if err := r.dst.removable(dir); err != nil {
				return err
			}
		}
	}
	if dir && r.from != r.to && r.dst == nil && r.to.d.LinksCount >= maxLinks &&
		!r.from.fs.sb.FeatureROCompat.Has(disk.ROCompatDirNlink) {
		return ErrTooManyLink
	}
	return nil
}

func (r *rename) apply(o *op) error {
	now := time.Now()
	src, dst := r.src, r.dst
	var left *Inode
	if r.whiteout {
		var err error
		if left, err = r.from.newInode(o, disk.ModeChar, r.uid, r.gid); err != nil {
			return err
		}
		left.d.SetDevice(0, 0)
		if err := left.store(o); err != nil {
			return err
		}
		o.onDone(func() { o.later(left.Put) })
	}
	if dst != nil {
		if err := r.to.dirReplace(o, r.newName, src.Ino(), src.d.Mode); err != nil {
			return err
		}
	} else if err := r.to.dirInsert(o, r.newName, src.Ino(), src.d.Mode); err != nil {
		return err
	}
	if r.exchange {
		if err := r.from.dirReplace(o, r.oldName, dst.Ino(), dst.d.Mode); err != nil {
			return err
		}
	} else if left != nil {
		if err := r.from.dirReplace(o, r.oldName, left.Ino(), left.d.Mode); err != nil {
			return err
		}
	} else if err := r.from.dirRemove(o, r.oldName); err != nil {
		return err
	}
	if err := r.parents(o); err != nil {
		return err
	}
	src.stamp(disk.TimestampOf(now))
	r.from.touch(now)
	r.to.touch(now)
	switch {
	case r.exchange:
		dst.stamp(src.d.Ctime)
		if err := dst.store(o); err != nil {
			return err
		}
	case dst != nil:
		if err := dst.unlinked(o, now); err != nil {
			return err
		}
	}
	for _, i := range []*Inode{src, r.from, r.to} {
		if err := i.store(o); err != nil {
			return err
		}
	}
	return nil
}

// parents keeps ".." and the link counts of the directories right.
func (r *rename) parents(o *op) error {
	srcDir := r.src.d.IsDir()
	dstDir := r.dst != nil && r.dst.d.IsDir()
	if srcDir && r.from != r.to {
		if err := r.src.dirSetParent(o, r.to.Ino()); err != nil {
			return err
		}
	}
	if dstDir && r.exchange && r.from != r.to {
		if err := r.dst.dirSetParent(o, r.from.Ino()); err != nil {
			return err
		}
	}
	if srcDir {
		r.from.removeDirLink()
		r.to.addDirLink()
	}
	if dstDir {
		r.to.removeDirLink()
		if r.exchange {
			r.from.addDirLink()
		}
	}
	return nil
}

// Rename flags, as in renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4 // see Inode.RenameWhiteout
)
