package fs

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// copyChunk is how many bytes of a copy are in memory at a time. maxCopy is how many bytes one request copies: copy_file_range(2) returns
// a short count then, so that a signal can stop a long copy.
const (
	copyChunk = 1 << 20
	maxCopy   = 64 << 20
)

// CopyFileRange copies between two files without the bytes passing through the kernel.
func (n *node) CopyFileRange(c *fuse.Caller, offIn uint64, to *node, offOut, size, flags uint64) (uint32, syscall.Errno) {
	if flags != 0 || offIn > math.MaxInt64 || offOut > math.MaxInt64 {
		return 0, syscall.EINVAL
	}
	if err := to.killPrivFor(c); err != nil {
		return 0, to.fail("copy", err)
	}
	may := n.srv.may(c)
	size = min(size, maxCopy)
	defer to.changed(int64(offOut), int64(min(offOut+size, math.MaxInt64)))
	var done uint64
	for done < size {
		copied, err := to.reclaimFor(func() (int, error) {
			k, err := n.in.CopyRange(int64(offIn+done), to.in, int64(offOut+done), int64(min(size-done, copyChunk)), may)
			return int(k), err
		})
		done += uint64(copied)
		if err != nil && done == 0 {
			return 0, n.fail("copy", err)
		}
		if err != nil || copied == 0 {
			break
		}
	}
	if err := to.syncFile(); err != nil {
		return 0, to.fail("copy", err)
	}
	return uint32(done), 0
}
