package dynlib

import (
	"os"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Setenv sets a variable for a library that is about to be opened, unless the user has.
func Setenv(name, value string) {
	if os.Getenv(name) != "" {
		return
	}
	os.Setenv(name, value)
	// Go's environment is a copy; the library reads C's.
	if fn, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv"); err == nil && fn != 0 {
		n, v := append([]byte(name), 0), append([]byte(value), 0)
		purego.SyscallN(fn, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&v[0])), 1)
	}
}
