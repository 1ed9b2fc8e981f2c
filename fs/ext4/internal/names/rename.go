package names

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Rename flags, as in renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4 // see Inode.RenameWhiteout
)

// Rename moves oldName of the directory i to newName of the directory to, replacing what is there unless flags say
// RenameNoReplace, or exchanging the two with RenameExchange.
//
// Locks: renameMu when two directories take part, so that the tree above them stands still; then the directories, an
// ancestor first; then what is moved and what is replaced.
func Rename(i *volume.Inode, oldName string, to *volume.Inode, newName string, flags uint32, may ...volume.May) error {
	if flags&RenameWhiteout != 0 {
		return volume.ErrInvalid // RenameWhiteout says whose it is
	}
	return rename(i, &renaming{from: i, to: to, oldName: oldName, newName: newName, may: may}, flags)
}

// RenameWithWhiteout is Rename that leaves a whiteout at oldName, for the layers of an overlay: a character device 0,0, owned
// by uid and gid.
func RenameWithWhiteout(i *volume.Inode, oldName string, to *volume.Inode, newName string, flags, uid, gid uint32, may ...volume.May) error {
	r := &renaming{from: i, to: to, oldName: oldName, newName: newName, may: may, uid: uid, gid: gid}
	return rename(i, r, flags|RenameWhiteout)
}

func rename(i *volume.Inode, r *renaming, flags uint32) error {
	if err := errors.Join(CheckName(r.oldName), CheckName(r.newName)); err != nil {
		if errors.Is(err, volume.ErrNameTooLong) {
			return volume.ErrNameTooLong
		}
		return volume.ErrInvalid
	}
	r.exchange, r.whiteout = flags&RenameExchange != 0, flags&RenameWhiteout != 0
	if flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 || r.exchange && flags != RenameExchange {
		return volume.ErrInvalid
	}
	if !i.FS.Writable() {
		return volume.ErrReadOnly
	}
	return i.FS.Change(r.may, func(o *volume.Op) error { return r.run(o, flags) })
}

type renaming struct {
	from, to         *volume.Inode
	oldName, newName string
	exchange         bool
	may              []volume.May
	whiteout         bool
	uid, gid         uint32        // of the whiteout
	src, dst         *volume.Inode // dst nil when nothing is replaced

	aboveFrom, aboveTo map[uint32]bool // directories between each and the root
}

func (r *renaming) run(o *volume.Op, flags uint32) error {
	r.lockDirs(o)
	for _, d := range []*volume.Inode{r.from, r.to} {
		if err := writableDir(d); err != nil {
			return err
		}
	}
	if r.from.Disk.Flags&disk.FlAppend != 0 {
		return volume.ErrPerm
	}
	var err error
	if r.src, err = lookup(r.from, r.oldName); err != nil {
		return err
	}
	o.Later(r.src.Put)
	switch r.dst, err = lookup(r.to, r.newName); {
	case err == nil:
		o.Later(r.dst.Put)
		if flags&RenameNoReplace != 0 {
			return volume.ErrExist
		}
	case !errors.Is(err, volume.ErrNotExist):
		return err
	case r.exchange:
		return volume.ErrNotExist
	}
	for _, d := range []*volume.Inode{r.from, r.to} {
		if err := dirDamage(d); err != nil {
			return err
		}
	}
	if r.src == r.dst {
		return nil // two names of one file: both stay
	}
	if r.dst != nil && r.to.Disk.Flags&disk.FlAppend != 0 {
		return volume.ErrPerm // new names may come in, but none may go
	}
	if err := r.checkLoops(); err != nil {
		return err
	}
	r.lockFiles(o)
	if err := r.check(); err != nil {
		return err
	}
	return o.Do(2*attrs.CreateCredits, func() error { return r.apply(o) })
}

// lockDirs locks the directories, an ancestor first.
func (r *renaming) lockDirs(o *volume.Op) {
	if r.from == r.to {
		o.Lock(r.from)
		return
	}
	o.LockTree()
	v := r.from.FS
	r.aboveFrom, r.aboveTo = ancestors(v, r.from), ancestors(v, r.to)
	first, second := r.from, r.to
	if r.aboveFrom[r.to.Ino()] || !r.aboveTo[r.from.Ino()] && r.to.Ino() < r.from.Ino() {
		first, second = r.to, r.from
	}
	o.Lock(first)
	o.Lock(second)
}

// ancestors is the directories on the way from d up to the root. renameMu is held, so they stay what they are; no other
// lock is, for a directory is never locked before the one above it. A broken way ends the search.
func ancestors(v *volume.FS, d *volume.Inode) map[uint32]bool {
	found := map[uint32]bool{}
	cur := d.Ref()
	defer func() { cur.Put() }()
	for cur.Ino() != disk.InoRoot {
		cur.Mu.RLock()
		up, _, err := DirLookup(cur, "..")
		cur.Mu.RUnlock()
		if err != nil || found[up] {
			break
		}
		found[up] = true
		next, err := v.Get(up)
		if err != nil {
			break
		}
		cur.Put()
		cur = next
	}
	return found
}

// checkLoops refuses to move a directory below itself, and to replace a directory that what is moved lies in.
func (r *renaming) checkLoops() error {
	switch {
	case r.src == r.to || r.aboveTo[r.src.Ino()]:
		return volume.ErrInvalid
	case r.dst == nil || r.dst != r.from && !r.aboveFrom[r.dst.Ino()]:
		return nil
	case r.exchange:
		return volume.ErrInvalid
	}
	return volume.ErrNotEmpty
}

// lockFiles locks what is moved and what is replaced.
func (r *renaming) lockFiles(o *volume.Op) {
	a, b := r.src, r.dst
	if b == nil {
		o.Lock(a)
		return
	}
	if b.Ino() < a.Ino() {
		a, b = b, a
	}
	o.Lock(a)
	o.Lock(b)
}

func (r *renaming) check() error {
	if r.src.Disk.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
		return volume.ErrPerm
	}
	if r.to.Disk.Flags&disk.FlProjinherit != 0 && r.to.Disk.Projid != r.src.Disk.Projid ||
		r.exchange && r.from.Disk.Flags&disk.FlProjinherit != 0 && r.from.Disk.Projid != r.dst.Disk.Projid {
		return volume.ErrCrossDevice
	}
	dir := r.src.Disk.IsDir()
	if r.dst != nil {
		switch {
		case r.exchange:
			if r.dst.Disk.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
				return volume.ErrPerm
			}
		case dir && !r.dst.Disk.IsDir():
			return volume.ErrNotDir
		case !dir && r.dst.Disk.IsDir():
			return volume.ErrIsDir
		default:
			if err := removable(r.dst, dir); err != nil {
				return err
			}
		}
	}
	if dir && r.from != r.to && r.dst == nil && r.to.Disk.LinksCount >= MaxLinks &&
		!r.from.FS.Super.FeatureROCompat.Has(disk.ROCompatDirNlink) {
		return volume.ErrTooManyLink
	}
	return nil
}

func (r *renaming) apply(o *volume.Op) error {
	now := time.Now()
	src, dst := r.src, r.dst
	var left *volume.Inode
	if r.whiteout {
		var err error
		if left, err = attrs.New(r.from, o, disk.ModeChar, r.uid, r.gid); err != nil {
			return err
		}
		left.Disk.SetDevice(0, 0)
		if err := left.Store(o); err != nil {
			return err
		}
		o.OnDone(func() { o.Later(left.Put) })
	}
	if dst != nil {
		if err := dirReplace(r.to, o, r.newName, src.Ino(), src.Disk.Mode); err != nil {
			return err
		}
	} else if err := DirInsert(r.to, o, r.newName, src.Ino(), src.Disk.Mode); err != nil {
		return err
	}
	if r.exchange {
		if err := dirReplace(r.from, o, r.oldName, dst.Ino(), dst.Disk.Mode); err != nil {
			return err
		}
	} else if left != nil {
		if err := dirReplace(r.from, o, r.oldName, left.Ino(), left.Disk.Mode); err != nil {
			return err
		}
	} else if err := DirRemove(r.from, o, r.oldName); err != nil {
		return err
	}
	if err := r.parents(o); err != nil {
		return err
	}
	src.Stamp(disk.TimestampOf(now))
	r.from.Touch(now)
	r.to.Touch(now)
	switch {
	case r.exchange:
		dst.Stamp(src.Disk.Ctime)
		if err := dst.Store(o); err != nil {
			return err
		}
	case dst != nil:
		if err := unlinked(dst, o, now); err != nil {
			return err
		}
	}
	for _, i := range []*volume.Inode{src, r.from, r.to} {
		if err := i.Store(o); err != nil {
			return err
		}
	}
	return nil
}

// parents keeps ".." and the link counts of the directories right.
func (r *renaming) parents(o *volume.Op) error {
	srcDir := r.src.Disk.IsDir()
	dstDir := r.dst != nil && r.dst.Disk.IsDir()
	if srcDir && r.from != r.to {
		if err := dirSetParent(r.src, o, r.to.Ino()); err != nil {
			return err
		}
	}
	if dstDir && r.exchange && r.from != r.to {
		if err := dirSetParent(r.dst, o, r.from.Ino()); err != nil {
			return err
		}
	}
	if srcDir {
		removeDirLink(r.from)
		addDirLink(r.to)
	}
	if dstDir {
		removeDirLink(r.to)
		if r.exchange {
			addDirLink(r.from)
		}
	}
	return nil
}
