package copyengine

import (
	"fmt"
	"runtime/debug"
)

// copyMapped copies from memory that may be a file's: it has no bytes where the file was truncated, and touching them must not end the
// process (SIGBUS).
func copyMapped(dst, src []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(interface{ Addr() uintptr }); !ok {
				panic(r)
			}
			err = fmt.Errorf("copying %d bytes: %v", len(src), r)
		}
	}()
	copy(dst, src)
	return nil
}
