package contents

import "github.com/lanefs/lanefs/fs/ext4/internal/volume"

// Fsync makes the file's bytes and, unless dataOnly says that what is needed to read them is enough, its attributes
// durable. With dataOnly a file that was only written over, or read, waits for no commit: its bytes are on the device,
// which flushes them.
func Fsync(i *volume.Inode, dataOnly bool) (err error) {
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
