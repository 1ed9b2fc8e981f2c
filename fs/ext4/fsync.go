package ext4

// Fsync makes the file's bytes and, unless dataOnly says that what is needed to read them is enough, its attributes
// durable. With dataOnly a file that was only written over, or read, waits for no commit: its bytes are on the device,
// which flushes them.
func (i *Inode) Fsync(dataOnly bool) (err error) {
	defer i.fs.noteTo(&err)
	if i.fs.opt.ReadOnly {
		return nil
	}
	if !dataOnly {
		if err := i.settleAccess(); err != nil {
			return err
		}
	}
	i.mu.RLock()
	tid := i.tid
	if dataOnly && i.d.IsReg() {
		tid = i.dataTID
	}
	i.mu.RUnlock()
	return i.fs.jnl.Sync(tid)
}
