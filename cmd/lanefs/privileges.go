package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/privilege"
)

// needed is what root's daemon keeps once everything is open: unmounting takes CAP_SYS_ADMIN, and pinning more memory for a
// drive, while the mount is used, CAP_IPC_LOCK. Files of others it opens no more; what users do in the volume is between
// the kernel, which checks their permissions, and the bytes on the medium.
var needed = privilege.Of(unix.CAP_SYS_ADMIN, unix.CAP_IPC_LOCK)

// dropPrivileges gives up the rest in all threads, and what programs could give back. Anybody else's daemon has no
// capabilities, and must keep the way to set-user-ID programs: it unmounts by fusermount3.
func dropPrivileges() error {
	if os.Geteuid() != 0 {
		return nil
	}
	return privilege.Drop(needed)
}
