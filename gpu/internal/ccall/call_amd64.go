package ccall

import (
	"unsafe"

	_ "github.com/ebitengine/purego" // makes cgocall work without cgo
)

// enter makes the calls. It counts as a system call, on a stack of the system's.
func (c *Call) enter() { cgocall(enterPC, unsafe.Pointer(c)) }

// cgocall is the runtime's, which leaves it open to packages that call C without cgo.
//
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

var enterPC uintptr // of enter in call_amd64.s
