package powercut

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// worker is one goroutine of a workload: it draws operations, does them on the volume and keeps the model.
type worker struct {
	m    *model
	g    *generator
	vol  *ext4.FS
	open map[int]*ext4.Inode // what m.held says
}

// run does n operations. position returns the position of the recording.
func (w *worker) run(n int, position func() int, stop func() bool) error {
	for range n {
		if stop() {
			return nil
		}
		o := w.g.next()
		r := result{Start: position()}
		size, err := w.do(&o)
		r.End, r.N = position(), size
		switch {
		case err == nil:
		case errors.Is(err, ext4.ErrNoSpace):
			r.NoSpace = true
		default:
			return fmt.Errorf("worker %d, operation %d, %v: %w\n  earlier ones on the file:%s", w.m.worker, w.m.now+1, &o, err, w.m.history(o.id, 15))
		}
		w.m.apply(o, r)
	}
	return nil
}

// history is the last n operations on a file.
func (m *model) history(id, n int) (s string) {
	for k := m.now; k > 0 && n > 0; k-- {
		if o := &m.ops[k-1]; o.id == id {
			s = fmt.Sprintf("\n    %d: %v (%d, no space %v)", k, o, m.results[k-1].N, m.results[k-1].NoSpace) + s
			n--
		}
	}
	return s
}

// closeAll closes the files that are held open, before the volume is unmounted.
func (w *worker) closeAll() {
	for id, i := range w.open {
		i.Put()
		delete(w.open, id)
	}
}

// inode finds a file by its path, or among those held open. The caller must Put it.
func (w *worker) inode(id int) (*ext4.Inode, error) {
	if i := w.open[id]; i != nil {
		return i.Ref(), nil
	}
	cur, err := w.vol.Root()
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(w.m.path(id), "/") {
		next, err := cur.Lookup(name)
		cur.Put()
		if err != nil {
			return nil, fmt.Errorf("%q of %q: %w", name, w.m.path(id), err)
		}
		cur = next
	}
	return cur, nil
}

func (m *model) path(id int) string {
	if id == ownDir || id == sharedDir {
		return m.top[id]
	}
	p := m.places[id][0]
	return m.path(p.dir) + "/" + p.name
}

// do does an operation.
func (w *worker) do(o *op) (n int64, err error) {
	var i, dir, dir2 *ext4.Inode
	get := func(id int) (i *ext4.Inode) {
		if err == nil {
			i, err = w.inode(id)
		}
		return i
	}
	defer func() {
		for _, x := range []*ext4.Inode{i, dir, dir2} {
			if x != nil {
				x.Put()
			}
		}
	}()
	switch o.kind {
	case opCreate, opMkdir, opSymlink, opMknod, opTmpfile:
		if dir = get(o.dir); err != nil {
			return 0, err
		}
		return 0, w.make(o, dir)
	case opLink, opUnlink, opRmdir, opRename, opExchange:
		if dir = get(o.dir); err != nil {
			return 0, err
		}
		switch o.kind {
		case opLink:
			if i = get(o.id); err == nil {
				err = dir.Link(i, o.name)
			}
		case opUnlink:
			err = dir.Unlink(o.name)
		case opRmdir:
			err = dir.Rmdir(o.name)
		default:
			flags := uint32(0)
			if o.kind == opExchange {
				flags = ext4.RenameExchange
			}
			if dir2 = get(o.dir2); err == nil {
				err = dir.Rename(o.name, dir2, o.name2, flags)
			}
		}
		return 0, err
	case opSync:
		return 0, w.vol.Sync()
	case opTrim:
		_, err = w.vol.Trim(0, 1<<60, 0)
		return 0, err
	}
	if i = get(o.id); err != nil {
		return 0, err
	}
	if o.kind.fileOp() {
		return w.contents(o, i)
	}
	return 0, w.other(o, i)
}

func (w *worker) make(o *op, dir *ext4.Inode) error {
	var n *ext4.Inode
	var err error
	switch o.kind {
	case opCreate, opMknod:
		n, err = dir.Create(o.name, o.mode, o.uid, o.gid, 0, 0)
	case opMkdir:
		n, err = dir.Mkdir(o.name, o.mode, o.uid, o.gid)
	case opSymlink:
		n, err = dir.Symlink(o.name, o.value, o.uid, o.gid)
	case opTmpfile:
		n, err = dir.Tmpfile(o.mode, o.uid, o.gid)
	}
	if err != nil {
		return err
	}
	if o.kind == opTmpfile {
		w.open[o.id] = n
	} else {
		n.Put()
	}
	return nil
}

// contents changes a file's bytes. It returns the number of bytes written, or the size after an allocation.
func (w *worker) contents(o *op, i *ext4.Inode) (int64, error) {
	switch o.kind {
	case opWrite:
		done, err := int64(0), error(nil)
		o.eachWrite(w.m.block, o.n, func(x *op) {
			if err == nil {
				var n int
				n, err = i.Write(x.off, w.m.data(x, w.m.now+1))
				done += int64(n)
			}
		})
		return done, err
	case opCopy:
		src, err := w.inode(o.src)
		if err != nil {
			return 0, err
		}
		defer src.Put()
		return src.CopyRange(o.srcOff, i, o.off, o.n)
	case opTruncate:
		_, err := i.SetAttr(ext4.SetAttr{Size: &o.n})
		return 0, err
	}
	err := i.Fallocate(o.falloc(), o.off, o.n)
	return i.Attr().Size, err
}

// falloc is the mode of fallocate(2).
func (o *op) falloc() uint32 {
	keep := uint32(0)
	if o.flag {
		keep = ext4.FallocKeepSize
	}
	switch o.kind {
	case opPunch:
		return ext4.FallocPunchHole | ext4.FallocKeepSize
	case opZero:
		return ext4.FallocZeroRange | keep
	}
	return keep
}

func (w *worker) other(o *op, i *ext4.Inode) error {
	switch o.kind {
	case opOpen:
		w.open[o.id] = i.Ref()
		return nil
	case opClose:
		w.open[o.id].Put()
		delete(w.open, o.id)
		return nil
	case opFsync:
		return i.Fsync(o.flag)
	case opSetxattr:
		return i.Setxattr(o.name, []byte(o.value), 0)
	case opRemovexattr:
		return i.Removexattr(o.name)
	case opChmod:
		_, err := i.SetAttr(ext4.SetAttr{Mode: &o.mode})
		return err
	case opChown:
		_, err := i.SetAttr(ext4.SetAttr{UID: &o.uid, GID: &o.gid})
		return err
	}
	return fmt.Errorf("operation %v is not known here", o.kind)
}

// setup makes the directories of the workers on a new volume.
func setup(vol *ext4.FS, workers int) error {
	root, err := vol.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	names := []string{sharedName}
	for w := range workers {
		names = append(names, workerName(w))
	}
	for _, name := range names {
		d, err := root.Mkdir(name, 0o755|unix.S_IFDIR, 0, 0)
		if err != nil {
			return err
		}
		d.Put()
	}
	return nil
}

const sharedName = "shared"

func workerName(w int) string { return fmt.Sprintf("w%d", w) }
