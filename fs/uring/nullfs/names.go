package nullfs

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or a directory that was made. Of a file there is a size only.
type node struct {
	mode uint32
	size uint64
	id   uint64
	sub  map[string]*node // of a directory
}

// names are the nodes that were made: so programs that make files and list them can be measured.
type names struct {
	mu    sync.RWMutex
	nodes map[uint64]*node
	last  uint64
}

func newNames() *names {
	root := &node{mode: fuse.S_IFDIR | 0o755, id: fuse.FUSE_ROOT_ID, sub: map[string]*node{}}
	data := &node{mode: fuse.S_IFREG | 0o666, id: file, size: fileSize}
	root.sub["data"] = data
	return &names{nodes: map[uint64]*node{root.id: root, data.id: data}, last: file}
}

func (d *node) attr(a *fuse.Attr) {
	a.Ino, a.Nlink, a.Size, a.Blksize, a.Mode = d.id, 1, d.size, 4096, d.mode
}

func (d *node) entry(out *fuse.EntryOut) {
	out.NodeId = d.id
	d.attr(&out.Attr)
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
}

func (n *names) lookup(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if p := n.nodes[parent]; p != nil && p.sub[name] != nil {
		p.sub[name].entry(out)
		return fuse.OK
	}
	return fuse.ENOENT
}

func (n *names) make(parent uint64, name string, mode uint32, out *fuse.EntryOut) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.nodes[parent]
	if p == nil || p.sub == nil {
		return fuse.ENOENT
	}
	n.last++
	d := &node{mode: mode, id: n.last}
	if mode&fuse.S_IFDIR != 0 {
		d.sub = map[string]*node{}
	}
	n.nodes[d.id], p.sub[name] = d, d
	d.entry(out)
	return fuse.OK
}

// remove forgets a name. The node stays: the kernel may have it open.
func (n *names) remove(parent uint64, name string) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.nodes[parent]; p != nil && p.sub[name] != nil {
		delete(p.sub, name)
		return fuse.OK
	}
	return fuse.ENOENT
}

// with calls f on a node, without others at the same time if it changes it.
func (n *names) with(id uint64, f func(d *node)) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.nodes[id]; d != nil {
		f(d)
		return fuse.OK
	}
	return fuse.ENOENT
}

// wrote makes a file as large as what was written to it.
func (n *names) wrote(id, end uint64) {
	n.mu.RLock()
	d := n.nodes[id]
	grows := d != nil && end > d.size
	n.mu.RUnlock()
	if grows {
		n.with(id, func(d *node) { d.size = max(d.size, end) })
	}
}

// listed are the names of a directory in order, so that an offset is one of them.
func (n *names) listed(id uint64) []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var all []string
	if d := n.nodes[id]; d != nil {
		for name := range d.sub {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
