// Package seccomp installs filters of system calls (seccomp(2)) in all threads of the process. A filter is a list of calls that are allowed, or
// of calls that are denied, and cannot be removed. Calls that are refused fail with EPERM, unless another error is asked for.
package seccomp

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule says for which arguments a system call matches. The zero value matches always.
type Rule struct {
	Arg    int      // number of the argument, whose lower 32 bits the other fields test
	Only   []uint32 // the argument is one of these; nil: any
	Clear  uint32   // none of these bits is set
	Needed uint32   // all of these bits are set
}

// Filter has the rules of system calls by number.
type Filter map[uintptr]Rule

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

const (
	retAllow   = 0x7fff0000
	retErrno   = 0x00050000
	setFilter  = 1      // SECCOMP_SET_MODE_FILTER
	threadSync = 1 << 0 // SECCOMP_FILTER_FLAG_TSYNC
	x32        = 0x40000000
)

var archs = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Allow allows the calls that match f and denies all others.
func Allow(f Filter) error { return install(f, retAllow, retErrno|uint32(unix.EPERM)) }

// Deny denies the calls that match f and allows all others.
func Deny(f Filter) error { return DenyWith(f, unix.EPERM) }

// DenyWith is Deny with another error: containers' filters deny with ENOSYS what the kernel need not have.
func DenyWith(f Filter, errno unix.Errno) error { return install(f, retErrno|uint32(errno), retAllow) }

func install(f Filter, match, other uint32) error {
	arch, ok := archs[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("seccomp: there is no filter for %s yet", runtime.GOARCH)
	}
	p := program(f, arch, match, other)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("PR_SET_NO_NEW_PRIVS", err)
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	tid, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setFilter, threadSync, uintptr(unsafe.Pointer(&prog)))
	switch {
	case errno != 0:
		return os.NewSyscallError("seccomp", errno)
	case tid != 0:
		return fmt.Errorf("seccomp: thread %d has a filter of its own", tid)
	}
	return nil
}

// program returns the filter in classic BPF. It refuses calls of another architecture, then compares the number with each rule.
func program(f Filter, arch, match, other uint32) []unix.SockFilter {
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	jump := func(how uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
	}
	p := []unix.SockFilter{load(offArch), jump(unix.BPF_JEQ, arch, 1, 0), ret(retErrno | uint32(unix.EPERM)), load(offNumber)}
	// The flags of clone3(2) are in memory, which a filter cannot read. With ENOSYS a libc falls back to clone(2).
	if _, named := f[unix.SYS_CLONE3]; !named {
		p = append(p, jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), ret(retErrno|uint32(unix.ENOSYS)))
	}
	if arch == unix.AUDIT_ARCH_X86_64 {
		p = append(p, jump(unix.BPF_JGE, x32, 0, 1), ret(retErrno|uint32(unix.EPERM)))
	}
	for _, nr := range slices.Sorted(maps.Keys(f)) {
		r := f[nr]
		var body []unix.SockFilter
		if r.Only != nil || r.Clear != 0 || r.Needed != 0 {
			body = append(body, load(offArgs+8*uint32(r.Arg)))
		}
		if r.Clear != 0 {
			body = append(body, jump(unix.BPF_JSET, r.Clear, 0, 1), ret(other))
		}
		for bit := uint32(1); bit != 0; bit <<= 1 {
			if r.Needed&bit != 0 {
				body = append(body, jump(unix.BPF_JSET, bit, 1, 0), ret(other))
			}
		}
		if r.Only != nil {
			for i, v := range r.Only {
				body = append(body, jump(unix.BPF_JEQ, v, len(r.Only)-i, 0))
			}
			body = append(body, ret(other))
		}
		body = append(body, ret(match))
		p = append(p, jump(unix.BPF_JEQ, uint32(nr), 0, len(body)))
		p = append(p, body...)
	}
	return append(p, ret(other))
}
