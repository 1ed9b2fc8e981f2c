// Package memfd makes memory that is a file (memfd_create(2)), to be sealed and passed to other processes. It does so in one way for all of LaneFS, also where
// the kernel asks for more than older kernels know.
package memfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// New makes an empty memfd that can be sealed. It cannot be executed as a program, for which the kernel's setting vm.memfd_noexec=2 asks; to map it
// executable, as a loader does, is another matter.
func New(name string) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags) // Linux before 6.3
	}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		err = fmt.Errorf("memfd_create: %w (a container's seccomp filter forbids it, most likely: let the container use memfd_create)", err)
	case err != nil:
		err = fmt.Errorf("memfd_create: %w", err)
	}
	return fd, err
}
