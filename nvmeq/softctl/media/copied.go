package media

import "github.com/lanefs/lanefs/gpu/fault"

// CopyView copies a view's bytes to b, which is as long, and says whether they were there. Of a file that was truncated meanwhile the page cache has
// none: the CPU's access faults (SIGBUS), and a read of the file says how it ends.
func CopyView(b *Buffers, view []byte) bool {
	return fault.Guard(func() {
		for _, v := range b.iov {
			view = view[copy(bytesOf(v), view):]
		}
	}) == nil
}
