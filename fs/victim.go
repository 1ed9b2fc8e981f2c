package fs

import (
	"math"

	"github.com/lanefs/lanefs/fs/ext4"
)

// A victim is the file behind a name that a request removes or replaces. The kernel lets nobody else change the directory
// meanwhile.
//
// When the answer arrives the kernel counts one of the file's names less by itself. If it has just got the attributes of the
// file by another request, in which the name was not counted any more, it counts it twice, and keeps the wrong number for as
// long as attributes are good. So while a name is leaving a file its attributes are good for no time at all: until the kernel
// has dealt with the answer, which it does with the directory locked, and a notification that takes that lock waits for.
type victim struct {
	in *ext4.Inode // one reference; nil: there is none
	n  *node       // nil: the kernel does not know it
}

// victim finds the file behind a name that is about to go from the directory n.
func (n *node) victim(name string) victim {
	in, err := n.in.Lookup(name)
	if err != nil {
		return victim{}
	}
	v := victim{in, n.srv.nodes.of(in)}
	if v.n != nil {
		v.n.leaving.Add(1)
	}
	return v
}

// gone ends it, before the request is answered. Name is one that is there until the kernel has dealt with the answer, in a
// directory that it keeps locked until then, and not after; unless back says that the request put another file there.
func (v victim) gone(dir *node, name string, back bool) {
	if v.in == nil {
		return
	}
	defer v.in.Put()
	srv, links := dir.srv, v.in.Attr().Links
	if tell := srv.opt.Changed; tell != nil && links == 0 {
		tell(v.in.Ino(), 0, math.MaxInt64)
	}
	switch {
	case v.n == nil:
	case links == 0: // the kernel does not count below zero
		srv.nodes.addNameless(v.n)
		v.n.leaving.Add(-1)
	default:
		in := dir.in.Ref()
		srv.late.Go(func() { // not here: it waits for the kernel, which waits for the answer
			defer v.n.leaving.Add(-1)
			defer in.Put()
			if again, err := in.Lookup(name); err == nil {
				again.Put()
				if !back {
					return // who made it again had the lock after us
				}
			}
			srv.fuse.EntryNotify(dir.id(), name)
		})
	}
}
