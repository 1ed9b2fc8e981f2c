//go:build !amd64

package ccall

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// enter makes the calls.
func (c *Call) enter() {
	if c.first != 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if c.firstResult, _, _ = purego.SyscallN(c.first, c.firstArg); int32(c.firstResult) != 0 {
			return
		}
	}
	c.result, _, _ = purego.SyscallN(c.fn, c.args[:registers+c.more]...)
}
