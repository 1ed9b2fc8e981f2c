package fs

import (
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// On a mount with sync or dirsync, and for inodes that chattr made so (+S, +D), a change is on the medium when the call that
// made it returns, or the call fails. The kernel asks a FUSE server for that only after writes, and only on a mount with sync;
// the rest is seen to here, for the calls for which the kernel's ext4 does.

// settleNames makes a change to the names of the directory n durable where that is wanted.
func (n *node) settleNames() error {
	if n.srv.flags&(unix.MS_SYNCHRONOUS|unix.MS_DIRSYNC) == 0 && n.in.Flags()&(ext4.FlagSync|ext4.FlagDirSync) == 0 {
		return nil
	}
	return n.in.Fsync(false)
}

// settle makes a change to the file n itself durable where that is wanted.
func (n *node) settle() error {
	if n.srv.flags&unix.MS_SYNCHRONOUS == 0 && n.in.Flags()&ext4.FlagSync == 0 {
		return nil
	}
	return n.in.Fsync(false)
}

// settleBytes makes what was written to n durable where that is wanted and the kernel does not ask for it by itself.
func (n *node) settleBytes() error {
	if n.in.Flags()&ext4.FlagSync == 0 {
		return nil
	}
	return n.in.Fsync(true)
}
