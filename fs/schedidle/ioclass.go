package schedidle

import (
	"os"

	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/ioprio.h.
const (
	ioprioWhoProcess = 1
	ioprioClassShift = 13
	ioprioClassNone  = 0
	ioprioClassBE    = 2
)

// keepIOClass gives the calling thread the I/O priority that it has by its nice value, if it has none of its own. Else the kernel takes the class from the
// policy (task_nice_ioclass in include/linux/ioprio.h), and what a thread with SCHED_IDLE reads from a disk waits for the requests of all others: with
// mq-deadline for up to ten seconds, even if the policy ends meanwhile.
func keepIOClass() error {
	prio, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, 0, 0)
	switch {
	case errno == unix.ENOSYS: // a kernel without block devices
		return nil
	case errno != 0:
		return os.NewSyscallError("ioprio_get", errno)
	case prio>>ioprioClassShift != ioprioClassNone:
		return nil
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return os.NewSyscallError("getpriority", err)
	}
	level := (2*normalNice - nice) / 5 // task_nice_ioprio
	if _, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, uintptr(ioprioClassBE<<ioprioClassShift|level)); errno != 0 {
		return os.NewSyscallError("ioprio_set", errno)
	}
	return nil
}
