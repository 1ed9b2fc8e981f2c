package host

import "unsafe"

// call calls a kernel. purego.SyscallN would do it, too: for calls of up to 32 arguments that return numbers, which takes 700 instructions more, twice for each
// command of a software controller. What it does for the Go runtime is done here as well: the call counts as a system call, on a stack of the system's.
func (s *stream) call(entry uintptr) {
	s.at[0] = entry
	cgocall(enterPC, unsafe.Pointer(&s.at))
}

// cgocall is the runtime's, which leaves it open to packages that call C without cgo; purego, which is linked in, makes it work.
//
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

var enterPC uintptr // of enter in call_amd64.s
