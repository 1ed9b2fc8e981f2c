package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/privilege"
	"github.com/lanefs/lanefs/fs/share/seccomp"
)

// keptCapabilities are what root's daemon keeps once everything is open: unmounting takes CAP_SYS_ADMIN, pinning more memory for a
// drive, while the mount is used, CAP_IPC_LOCK, and a thread that has SCHED_IDLE gives that up with CAP_SYS_NICE (see fs/schedidle). It opens no more files of other users; what users do in the volume is between
// the kernel, which checks their permissions, and the bytes on the medium.
var keptCapabilities = privilege.Of(unix.CAP_SYS_ADMIN, unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE)

// dropPrivileges gives up the rest in all threads, and what programs could give back. Another user's daemon has no
// capabilities, and must keep the way to set-user-ID programs: it unmounts by fusermount3.
func dropPrivileges() error {
	if os.Geteuid() != 0 {
		return nil
	}
	return errors.Join(privilege.Drop(keptCapabilities), seccomp.Deny(deniedCalls))
}

// deniedCalls are system calls that neither the daemon nor a GPU's runtime makes, but that would serve an attacker who has taken over root's
// daemon, with CAP_SYS_ADMIN: other processes' memory, the kernel's code, namespaces, keys, devices, the clock. There is no list of
// what a runtime may do: runtimes open files, map code, start programs and use drivers that we do not know. What stays is files by
// name, ioctl, mount and umount.
var deniedCalls = seccomp.Filter{
	unix.SYS_PTRACE: {}, unix.SYS_PROCESS_VM_READV: {}, unix.SYS_PROCESS_VM_WRITEV: {}, unix.SYS_KCMP: {},
	unix.SYS_INIT_MODULE: {}, unix.SYS_FINIT_MODULE: {}, unix.SYS_DELETE_MODULE: {}, unix.SYS_KEXEC_LOAD: {}, unix.SYS_REBOOT: {},
	unix.SYS_BPF: {}, unix.SYS_PERF_EVENT_OPEN: {}, unix.SYS_USERFAULTFD: {}, unix.SYS_FANOTIFY_INIT: {}, unix.SYS_IO_URING_SETUP: {},
	unix.SYS_UNSHARE: {}, unix.SYS_SETNS: {}, unix.SYS_PIVOT_ROOT: {}, unix.SYS_CHROOT: {}, unix.SYS_MOVE_MOUNT: {}, unix.SYS_MOUNT_SETATTR: {},
	unix.SYS_OPEN_BY_HANDLE_AT: {}, unix.SYS_MKNODAT: {}, unix.SYS_ADD_KEY: {}, unix.SYS_REQUEST_KEY: {}, unix.SYS_KEYCTL: {},
	unix.SYS_SWAPON: {}, unix.SYS_SWAPOFF: {}, unix.SYS_ACCT: {}, unix.SYS_QUOTACTL: {}, unix.SYS_SETHOSTNAME: {}, unix.SYS_SETDOMAINNAME: {},
	unix.SYS_SETTIMEOFDAY: {}, unix.SYS_CLOCK_SETTIME: {}, unix.SYS_ADJTIMEX: {}, unix.SYS_CLOCK_ADJTIME: {},
}
