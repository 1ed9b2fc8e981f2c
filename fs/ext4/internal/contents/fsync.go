package contents

import "github.com/lanefs/lanefs/fs/ext4/internal/volume"

// An fsync:
//
//  1. an access time that was noted is stored (not for fdatasync)
//  2. the transaction that last changed the inode is looked up; for fdatasync the last that changed more than times
//  3. jbd2 commits it, or flushes the device if it is committed already: bytes written in place need no more

// Fsync makes the file's bytes and, unless dataOnly says that what is needed to read them is enough, its attributes
// durable. With dataOnly a file that was only written over, or read, waits for no commit: its bytes are on the device,
// which flushes them.
func Fsync(i *volume.Inode, dataOnly bool) (err error) {
	defer i.FS.Times.Start(volume.TimeSync).End()
	defer i.FS.NoteTo(&err)
	if i.FS.Opt.ReadOnly {
		return nil
	}
	if !dataOnly {
		if err := i.SettleAccess(); err != nil {
			return err
		}
	}
	i.Mu.RLock()
	tid := i.TID
	if dataOnly && i.Disk.IsReg() {
		tid = i.DataTID
	}
	i.Mu.RUnlock()
	return i.FS.Journal.Sync(tid)
}
