package nullfs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
)

// The requests for what was made.

func (n *FS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return n.names.make(in.NodeId, name, fuse.S_IFREG|in.Mode&0o7777, &out.EntryOut)
}

func (n *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return n.names.make(in.NodeId, name, fuse.S_IFDIR|in.Mode&0o7777, out)
}

func (n *FS) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return n.names.remove(in.NodeId, name)
}

func (n *FS) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return n.names.remove(in.NodeId, name)
}

// Fsync has nothing to make durable, but is a request, as it is for LaneFS.
func (n *FS) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (n *FS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

// ReadDirPlus lists a directory. It sorts the names anew for each request, which costs little beside the requests of those who list.
func (n *FS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	all := n.names.listed(in.NodeId)
	for i := in.Offset; i < uint64(len(all)); i++ {
		e := fuse.DirEntry{Name: all[i], Off: i + 1}
		var got fuse.EntryOut
		if n.names.lookup(in.NodeId, e.Name, &got) != fuse.OK {
			continue
		}
		e.Ino, e.Mode = got.NodeId, got.Attr.Mode
		to := out.AddDirLookupEntry(e)
		if to == nil {
			break
		}
		*to = got
	}
	return fuse.OK
}
