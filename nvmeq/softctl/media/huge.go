package media

import "github.com/lanefs/lanefs/gpu/hugepage"

// collapse has the kernel make huge pages of what b maps of the image from off on, which has no holes: those it would fill. Nothing is done where b is more
// than a quarter of the memory that the process may have yet.
func collapse(b []byte, off int64) {
	if MemoryRoom()/4 >= int64(len(b)) {
		hugepage.Collapse(b, off)
	}
}
