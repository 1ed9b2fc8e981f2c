//go:build amd64 || arm64

package privilege

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// signal is glibc's and Go's for changing every thread's credentials (nptl: SIGSETXID).
const signal = unix.Signal(33)

// sigaction as rt_sigaction(2) takes it on both.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	saRestorer = 0x04000000
	saOnStack  = 0x08000000
	saRestart  = 0x10000000
	maskBytes  = 8
)

// What the handler passes to capset(2): read by all threads, written before the first is asked.
var (
	capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	capData   [2]unix.CapUserData
)

// handlerPC and restorerPC are the addresses of the assembly.
func handlerPC() uintptr
func restorerPC() uintptr

// install puts the handler in place of what is there, until restore.
func install(keep Set) (restore func() error, err error) {
	var have [2]unix.CapUserData
	header := capHeader
	if err := unix.Capget(&header, &have[0]); err != nil {
		return nil, os.NewSyscallError("capget", err)
	}
	for i := range have {
		// No thread of ours has more than another, so what this one has is what there is to keep.
		left := have[i].Permitted & uint32(keep>>(32*i))
		capData[i] = unix.CapUserData{Permitted: left, Effective: left}
	}
	act := sigaction{handler: handlerPC(), flags: saRestorer | saOnStack | saRestart, restorer: restorerPC(), mask: ^uint64(0)}
	var old sigaction
	if err := setAction(&act, &old); err != nil {
		return nil, err
	}
	return func() error { return setAction(&old, nil) }, nil
}

func setAction(act, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), maskBytes, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("rt_sigaction", errno)
	}
	return nil
}

// here makes the handler's calls on this thread, after install, and says what they return.
func here() refused {
	var r refused
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		r.noNewPrivs = os.NewSyscallError("PR_SET_NO_NEW_PRIVS", err)
	}
	_ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
	if err := unix.Capset(&capHeader, &capData[0]); err != nil {
		r.capset = os.NewSyscallError("capset", err)
	}
	return r
}
