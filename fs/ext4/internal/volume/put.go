package volume

import "sync"

// Ref is one more reference.
func (i *Inode) Ref() *Inode {
	i.FS.inodes.mu.Lock()
	i.refs++
	i.FS.inodes.mu.Unlock()
	return i
}

// drop gives up a reference to an inode that could not be loaded.
func (i *Inode) drop() {
	t := &i.FS.inodes
	t.mu.Lock()
	defer t.mu.Unlock()
	if i.refs--; i.refs == 0 && !i.dead {
		delete(t.m, i.ino)
	}
}

// Put gives up a reference. The last one of a file without links frees it, and of a file whose truncation failed half-way
// tries that once more, which may take several transactions: Put is not called under a handle or a lock.
func (i *Inode) Put() {
	t := &i.FS.inodes
	t.mu.Lock()
	if i.refs > 1 || i.dead {
		i.refs--
		t.mu.Unlock()
		return
	}
	// This is the only reference, so the links stay as they are. ByNumber may still find the inode; it looks again.
	gone := i.Disk.LinksCount == 0 && i.Disk.Mode != 0 && i.ino >= i.FS.Super.FirstIno
	if !gone && !i.Shortens || i.FS.readOnly.Load() {
		i.refs--
		delete(t.m, i.ino)
		t.mu.Unlock()
		i.DropWindow()
		return
	}
	t.mu.Unlock()
	i.DropWindow()
	if err := i.FS.end(i, gone); err != nil {
		if !IsCorrupt(err) { // damage is logged already
			i.FS.Opt.Log.Error("freeing what an inode had failed: its blocks stay in use until the next mount frees them", "inode", i.ino, "error", err)
		}
		if !i.FS.unfinished.add(i) {
			i.drop()
		}
		return
	}
	t.mu.Lock()
	i.refs--
	if i.refs == 0 && !i.dead {
		delete(t.m, i.ino)
	}
	t.mu.Unlock()
}

// unfinished holds inodes whose last Put could not free what they had. They are orphans on the volume. Close tries once more; what
// fails again is left to the next mount.
type unfinished struct {
	mu     sync.Mutex
	inodes []*Inode // protected by mu; referenced
	closed bool     // protected by mu
}

// add takes over a reference, or reports false when the volume is being closed.
func (u *unfinished) add(i *Inode) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return false
	}
	u.inodes = append(u.inodes, i)
	return true
}

// UnfinishedCount is how many inodes are left that could not be freed or truncated.
func (v *FS) UnfinishedCount() int {
	u := &v.unfinished
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.inodes)
}

// close tries once more.
func (u *unfinished) close() {
	u.mu.Lock()
	list := u.inodes
	u.inodes, u.closed = nil, true
	u.mu.Unlock()
	for _, i := range list {
		i.Put()
	}
}

// DropWindow gives up what is kept for the file.
func (i *Inode) DropWindow() { i.FS.Alloc.Drop(&i.Window) }
