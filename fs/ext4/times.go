package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// timeGrain is how exact the times of writing are: the kernel's own are exact to a tick.
const timeGrain = 4 * time.Millisecond

// touch sets modification and change time to now. mu is held; the caller stores the inode.
func (i *Inode) touch(now time.Time) {
	i.d.Mtime = disk.TimestampOf(now)
	i.stamp(i.d.Mtime)
	i.changed = true
}

// stamp sets the change time. i_version moves with it: an NFS server on the kernel's ext4 tells clients by that whether what
// they keep of the file is old. mu is held; the caller stores the inode.
func (i *Inode) stamp(t disk.Timestamp) {
	i.d.Ctime = t
	i.d.Version++
}

// storeTimes is store after set, which changes nothing but times.
func (i *Inode) storeTimes(o *op, set func()) error {
	data, more := i.dataTID, i.changed
	set()
	err := i.store(o)
	if !more {
		i.dataTID = data
	}
	return err
}
