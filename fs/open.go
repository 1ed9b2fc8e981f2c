package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// The kernel's pages stay valid between opens, because the mount is the only writer of the volume.
const openFlags = fuse.FOPEN_KEEP_CACHE

// openFlags returns the FOPEN_* flags for a file that is opened with flags.
func (s *Server) openFlags(flags uint32) uint32 {
	if s.opt.StrictAtime && flags&syscall.O_ACCMODE != syscall.O_WRONLY {
		return openFlags | fuse.FOPEN_DIRECT_IO
	}
	return openFlags
}

// Open checks the inode flags, which the kernel does not know, and returns FOPEN_* flags. There is no file handle: requests carry all
// that is needed. The open file is a use of the node, which Release ends.
func (n *node) Open(flags uint32) (uint32, syscall.Errno) {
	if acc := flags & syscall.O_ACCMODE; acc != syscall.O_RDONLY {
		if n.srv.vol.ReadOnly() { // since an error, of which the kernel knows nothing
			return 0, syscall.EROFS
		}
		a := n.in.Attr()
		if a.Flags&ext4.FlagImmutable != 0 || a.Flags&ext4.FlagAppend != 0 && flags&syscall.O_APPEND == 0 {
			return 0, syscall.EPERM
		}
	}
	n.opened(flags)
	fl := n.srv.openFlags(flags)
	if flags&syscall.O_DIRECT != 0 && !n.srv.opt.WriteBack {
		// Direct writes that do not extend the file need not wait for one another. Not with the write-back cache: there the kernel may
		// have a larger size than ext4, so a direct read that ends early must continue in the cache. The kernel does that only if
		// FOPEN_DIRECT_IO is not set.
		fl |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	return fl, 0
}

// opened and released count the open files that may write.
func (n *node) opened(flags uint32) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		n.writers.Add(1)
	}
}

func (n *node) released(flags uint32) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		n.writers.Add(-1)
	}
}
