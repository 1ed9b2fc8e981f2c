package fs

import (
	"errors"
	"math"

	"github.com/lanefs/lanefs/fs/ext4"
)

// A victim is the file whose name a request removes or replaces. The kernel locks the directory until it has handled the reply.
//
// When the reply arrives the kernel decrements the file's link count by itself. If it has just received the attributes in the reply to
// another request, with the lower count, it decrements twice, and keeps the wrong count for as long as the attributes are valid. So
// attributes are sent with a timeout of zero while a name is being removed, until the kernel has handled the reply. It does that with the
// directory locked, so a notification that takes the directory's lock waits for it.
type victim struct {
	in *ext4.Inode // one reference; nil: there is none
	n  *node       // in use, so that it keeps the file if that was its last name; nil: the kernel knows no node of it
}

// victim returns the file whose name in the directory n is about to be removed. A file that cannot be loaded keeps its name: if the
// kernel knows it, nothing here would keep the file.
func (n *node) victim(name string) (victim, error) {
	in, err := n.in.Lookup(name)
	if errors.Is(err, ext4.ErrNotExist) {
		return victim{}, nil
	}
	if err != nil {
		return victim{}, err
	}
	v := victim{in, n.srv.nodes.of(n.srv, in, true)}
	if v.n != nil {
		v.n.leaving.Add(1)
	}
	return v, nil
}

// finish is called before the reply. name is a name in dir that exists for the kernel until it has handled the reply. back says that the
// request has put another file at the name, so that it exists afterwards, too.
func (v victim) finish(dir *node, name string, back bool) {
	if v.in == nil {
		return
	}
	defer v.in.Put()
	srv, links := dir.srv, v.in.Attr().Links
	if f := srv.opt.Changed; f != nil && links == 0 {
		f(v.in.Ino(), 0, math.MaxInt64)
	}
	switch {
	case v.n == nil:
	case links == 0: // the kernel does not decrement below zero
		srv.nodes.addNameless(v.n)
		v.left()
	default:
		in := dir.in.Ref()
		srv.background.Go(func() { // the notification waits for the kernel, which waits for the reply
			defer v.left()
			defer in.Put()
			if again, err := in.Lookup(name); err == nil {
				again.Put()
				if !back {
					return // the name was made again, with the lock, after the reply
				}
			}
			srv.fuse.EntryNotify(dir.id(), name)
		})
	}
}

// left is called when the kernel has handled the reply.
func (v victim) left() {
	v.n.leaving.Add(-1)
	v.n.done()
}
