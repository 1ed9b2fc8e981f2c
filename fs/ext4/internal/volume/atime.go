package volume

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Access times. A read never waits for the journal, neither for a commit nor for room in the log:
//
//  1. with Mu shared, which the read has anyway, the time is noted in Inode.AccessTime; attributes show it from then on
//  2. when the read is done, the inode is stored, if Mu and a handle can be had without waiting
//  3. else it is left to storeLate, which waits for a handle, and stores the inode once its Mu is free
//
// Storing the inode for another reason stores the noted time, too. fsync and Sync store it first.

// lateAccess is the inodes whose access time is to be stored by storeLate.
type lateAccess struct {
	mu     sync.Mutex
	inodes map[*Inode]struct{} // protected by mu; referenced
	ended  chan struct{}       // protected by mu: closed by storeLate at its end; nil while it does not run
}

// storeLate waits between its rounds while Mu of some inodes is taken: lateStep at first, lateStepMax at most.
const (
	lateStep    = time.Millisecond
	lateStepMax = time.Second
)

// LastAccess is the access time. Mu is held.
func (i *Inode) LastAccess() time.Time {
	if n := i.AccessTime.Load(); n != 0 {
		return disk.TimestampOfBits(n).Time()
	}
	return i.Disk.Atime.Time()
}

// accessDue says whether reading now, a time as the inode stores it, changes the access time. Where an attribute's value lies, that is a checksum. Mu is
// held.
func (i *Inode) accessDue(now time.Time) bool {
	switch {
	case i.FS.Opt.Atime == AtimeNever, i.FS.Opt.NoDirAtime && i.Disk.IsDir(), i.Disk.Flags&(disk.FlNoatime|disk.FlEAInode) != 0,
		i.FS.readOnly.Load():
		return false
	}
	at := i.LastAccess()
	if at.Equal(now) { // after 2038 inodes of 128 bytes have no later time
		return false
	}
	if i.FS.Opt.Atime == AtimeAlways {
		return now.Sub(at).Abs() >= TimeGrain // also when the clock was set back
	}
	return !at.After(i.Disk.Mtime.Time()) || !at.After(i.Disk.Ctime.Time()) || now.Sub(at) >= 24*time.Hour
}

// Reading is what a read does, and leaves undone, because of the descriptor that it is done for.
type Reading uint8

// KeepAtime leaves the access time as it is: the descriptor has O_NOATIME.
const KeepAtime Reading = 1 << iota

// EndRead ends what reads the inode's contents under Mu, shared, which it releases: the access is noted, and stored if it
// changes the access time.
func (i *Inode) EndRead(how ...Reading) {
	if slices.Contains(how, KeepAtime) {
		i.Mu.RUnlock()
		return
	}
	now := i.Disk.RoundAtime(disk.TimestampOf(time.Now()))
	due := i.accessDue(now.Time())
	if due {
		i.AccessTime.Store(now.Bits())
	}
	i.Mu.RUnlock()
	if due {
		i.storeAccess()
	}
}

// storeAccess stores what EndRead noted, now or later. No lock is held. A volume that takes no changes any more is no
// reason for a read to fail.
func (i *Inode) storeAccess() {
	stored := false
	_ = i.FS.Change(nil, func(o *Op) (err error) {
		if o.tryLock(i) {
			stored, err = o.try(accessCredits, func() error { return i.storeAccessTime(o) })
		}
		return err
	})
	if stored {
		return
	}
	l := &i.FS.late
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.inodes, l.ended = map[*Inode]struct{}{}, make(chan struct{})
		go i.FS.storeLate()
	}
	if _, ok := l.inodes[i]; !ok {
		l.inodes[i.Ref()] = struct{}{}
	}
}

// accessCredits: the inode's block, and the superblock.
const accessCredits = 2

// storeLate stores access times until none is left.
func (v *FS) storeLate() {
	l := &v.late
	for step := lateStep; ; step = min(2*step, lateStepMax) {
		for _, i := range l.list() {
			if v.storeOneLate(i) {
				l.mu.Lock()
				delete(l.inodes, i)
				l.mu.Unlock()
				i.Put()
			}
			i.Put()
		}
		l.mu.Lock()
		if len(l.inodes) == 0 {
			close(l.ended)
			l.ended = nil
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		time.Sleep(step)
	}
}

// list gives a reference to each of the inodes.
func (l *lateAccess) list() (list []*Inode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.inodes {
		list = append(list, i.Ref())
	}
	return list
}

// storeOneLate waits for a handle, but not for Mu, whose holder may be waiting for a handle. It reports false if Mu was taken.
func (v *FS) storeOneLate(i *Inode) bool {
	if i.AccessTime.Load() == 0 {
		return true // stored meanwhile
	}
	done := false
	err := v.Change(nil, func(o *Op) error {
		return o.Do(accessCredits, func() error {
			if done = o.tryLock(i); !done {
				return nil
			}
			return i.storeAccessTime(o)
		})
	})
	return done || err != nil
}

// storeAccessTime stores the noted time. Mu is held for writing.
func (i *Inode) storeAccessTime(o *Op) error { return i.StoreTimes(o, i.takeAccess) }

// takeAccess puts the noted time into the inode, which is about to be stored. Mu is held for writing.
func (i *Inode) takeAccess() {
	if n := i.AccessTime.Swap(0); n != 0 {
		i.Disk.Atime = disk.TimestampOfBits(n)
	}
}

// SettleAccess stores a noted time before an fsync.
func (i *Inode) SettleAccess() error {
	if i.AccessTime.Load() == 0 || i.FS.readOnly.Load() {
		return nil
	}
	return i.FS.Change(nil, func(o *Op) error {
		o.Lock(i)
		return o.Do(accessCredits, func() error { return i.storeAccessTime(o) })
	})
}

// settleAllAccess is SettleAccess of all inodes.
func (v *FS) settleAllAccess() error {
	var errs []error
	for _, i := range v.late.list() {
		errs = append(errs, i.SettleAccess())
		i.Put()
	}
	return errors.Join(errs...)
}

// closeAccess waits for storeLate. No reads are in progress.
func (v *FS) closeAccess() {
	v.late.mu.Lock()
	ended := v.late.ended
	v.late.mu.Unlock()
	if ended != nil {
		<-ended // no operation holds Mu of an inode, and a commit ends with the device's own deadlines
	}
}
