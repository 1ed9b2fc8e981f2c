package fs

import (
	"context"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

var _ = (gofs.NodeOpener)((*node)(nil))

// The kernel's pages stay good between opens: nobody else writes the volume.
const openFlags = fuse.FOPEN_KEEP_CACHE

// openFlags are those of a file that is opened with flags.
func (s *Server) openFlags(flags uint32) uint32 {
	if s.opt.StrictAtime && flags&syscall.O_ACCMODE != syscall.O_WRONLY {
		return openFlags | fuse.FOPEN_DIRECT_IO
	}
	return openFlags
}

// Open checks what the kernel cannot know of an ext4 file. There is no handle: what the kernel sends with a request is
// enough.
func (n *node) Open(_ context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if acc := flags & syscall.O_ACCMODE; acc != syscall.O_RDONLY {
		a := n.in.Attr()
		if a.Flags&ext4.FlagImmutable != 0 || a.Flags&ext4.FlagAppend != 0 && flags&syscall.O_APPEND == 0 {
			return nil, 0, syscall.EPERM
		}
	}
	n.opened(flags)
	fl := n.srv.openFlags(flags)
	if flags&syscall.O_DIRECT != 0 && !n.srv.opt.WriteBack {
		// Writers that stay inside the file need not wait for one another. With the write-back cache the kernel may know
		// of a size that ext4 does not know yet, so a direct read that ends early has to go on through the cache, which
		// the kernel sees to where the flag is not set.
		fl |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	return nil, fl, 0
}

// opened and released count who may write the file.
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
