package fs

import (
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Synchronous changes. On a mount with sync or dirsync, and for inodes with chattr +S or +D, a change is on the medium when the system
// call returns, or the call fails. The kernel sends FSYNC to a FUSE server only after writes, and only on a mount with sync. The
// functions here do the rest, for the same calls as the kernel's ext4.

// syncNames makes a change to the names in directory n durable if the mount or n is synchronous.
func (n *node) syncNames() error {
	if n.srv.flags&(unix.MS_SYNCHRONOUS|unix.MS_DIRSYNC) == 0 && n.in.Flags()&(ext4.FlagSync|ext4.FlagDirSync) == 0 {
		return nil
	}
	return n.in.Fsync(false)
}

// syncFile makes a change to the file n durable if the mount or n is synchronous.
func (n *node) syncFile() error {
	if n.srv.flags&unix.MS_SYNCHRONOUS == 0 && n.in.Flags()&ext4.FlagSync == 0 {
		return nil
	}
	return n.in.Fsync(false)
}

// syncBytes makes bytes that were written to n durable if n is synchronous. On a synchronous mount the kernel sends FSYNC itself.
func (n *node) syncBytes() error {
	if n.in.Flags()&ext4.FlagSync == 0 {
		return nil
	}
	return n.in.Fsync(true)
}
