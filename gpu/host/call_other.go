//go:build !amd64

package host

import "github.com/ebitengine/purego"

// call calls a kernel.
func (s *stream) call(entry uintptr) { purego.SyscallN(entry, s.at[1:]...) }
