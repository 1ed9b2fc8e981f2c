package lanefs

import "golang.org/x/sys/unix"

// own is a descriptor whose number the program gets to see, and the package closes. A program may close it itself, and open another file under the number, which is not the package's to close.
type own struct {
	fd       int // -1: none
	dev, ino uint64
}

func newOwn(fd int) own {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	return own{fd, st.Dev, st.Ino}
}

// close closes the descriptor, once, and only if the number is still the descriptor's.
func (o *own) close() {
	var st unix.Stat_t
	if o.fd >= 0 && unix.Fstat(o.fd, &st) == nil && st.Dev == o.dev && st.Ino == o.ino {
		unix.Close(o.fd)
	}
	o.fd = -1
}
