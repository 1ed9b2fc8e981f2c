package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// accessDue says whether reading now changes the access time. Where an attribute's value lies, that is a checksum. mu is
// held.
func (i *Inode) accessDue(now time.Time) bool {
	if i.fs.opt.Atime == AtimeNever || i.d.Flags&(disk.FlNoatime|disk.FlEAInode) != 0 || i.fs.readOnly.Load() {
		return false
	}
	if i.fs.opt.Atime == AtimeAlways {
		return now.Sub(i.d.Atime.Time()) >= timeGrain
	}
	at := i.d.Atime.Time()
	return !at.After(i.d.Mtime.Time()) || !at.After(i.d.Ctime.Time()) || now.Sub(at) >= 24*time.Hour
}

// accessed records that the inode was read. No lock is held. A volume that takes no changes any more is no reason for a
// read to fail.
func (i *Inode) accessed() {
	now := time.Now()
	i.mu.RLock()
	due := i.accessDue(now)
	i.mu.RUnlock()
	if !due {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.accessDue(now) {
		return
	}
	_ = i.fs.do(2, func(h *jbd2.Handle) error {
		i.d.Atime = disk.TimestampOf(now)
		return i.store(h)
	})
}
