package volume

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// TimeGrain is how exact the times of writing are: the kernel's own are exact to a tick.
const TimeGrain = 4 * time.Millisecond

// Touch sets modification and change time to now. Mu is held; the caller stores the inode.
func (i *Inode) Touch(now time.Time) {
	i.Disk.Mtime = disk.TimestampOf(now)
	i.Stamp(i.Disk.Mtime)
	i.Changed = true
}

// Stamp sets the change time. i_version moves with it: an NFS server on the kernel's ext4 tells clients by that whether what
// they keep of the file is old. Mu is held; the caller stores the inode.
func (i *Inode) Stamp(t disk.Timestamp) {
	i.Disk.Ctime = t
	i.Disk.Version++
}

// StoreTimes is store after set, which changes nothing but times.
func (i *Inode) StoreTimes(o *Op, set func()) error {
	data, more := i.DataTID, i.Changed
	set()
	err := i.Store(o)
	if !more {
		i.DataTID = data
	}
	return err
}
