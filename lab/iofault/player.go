package iofault

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// player does operations of the differential generator on a mounted volume, without FUSE. It acts as root, and skips locks,
// masks and maps, which are not operations of a volume. What a system call does in several steps it does in several steps.
type player struct {
	vol   *ext4.FS
	slots []*slot
	again bool // the operation is repeated
	at    int64
}

// slot is an open file.
type slot struct {
	in    *ext4.Inode
	path  string // by which it was opened
	flags int
	pos   int64
}

// outcome is what an operation returns.
type outcome struct {
	ret int64
	err error
}

// errSkipped is the error of an operation that a volume does not have. It changes nothing.
var errSkipped = errors.New("no operation of a volume")

func newPlayer(v *ext4.FS) *player {
	return &player{vol: v, slots: make([]*slot, diff.Slots)}
}

func (p *player) close() {
	for k := range p.slots {
		p.drop(k)
	}
}

func (p *player) drop(k int) {
	if s := p.slots[k]; s != nil {
		p.slots[k] = nil
		s.in.Put()
	}
}

// handles returns what reopen needs to open the slots again after an unmount.
func (p *player) handles() []slot {
	list := make([]slot, len(p.slots))
	for k, s := range p.slots {
		if s != nil {
			list[k] = slot{path: s.path, flags: s.flags, pos: s.pos}
		}
	}
	return list
}

// reopen opens the slots that handles returned, if their names still exist.
func (p *player) reopen(list []slot) error {
	for k, s := range list {
		if s.path == "" {
			continue
		}
		in, err := p.find(s.path)
		if errors.Is(err, ext4.ErrNotExist) || errors.Is(err, ext4.ErrNotDir) {
			continue
		}
		if err != nil {
			return err
		}
		p.slots[k] = &slot{in: in, path: s.path, flags: s.flags, pos: s.pos}
	}
	return nil
}

// parent finds the directory of a path, and the last name in it.
func (p *player) parent(path string) (*ext4.Inode, string, error) {
	names := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	dir, err := p.vol.Root()
	if err != nil {
		return nil, "", err
	}
	if len(names) == 0 {
		return dir, ".", nil
	}
	for k, name := range names {
		if name == ".." {
			dir.Put()
			return nil, "", ext4.ErrNotSup
		}
		if k == len(names)-1 {
			return dir, name, nil
		}
		next, err := dir.Lookup(name)
		dir.Put()
		if err != nil {
			return nil, "", err
		}
		if next.Attr().Mode&unix.S_IFMT != unix.S_IFDIR {
			next.Put()
			return nil, "", ext4.ErrNotDir
		}
		dir = next
	}
	panic("no last name")
}

// find looks a path up. Symbolic links are not followed.
func (p *player) find(path string) (*ext4.Inode, error) {
	dir, name, err := p.parent(path)
	if err != nil {
		return nil, err
	}
	if name == "." {
		return dir, nil
	}
	defer dir.Put()
	return dir.Lookup(name)
}

// on runs f on the file that a path names.
func (p *player) on(path string, f func(in *ext4.Inode) error) error {
	in, err := p.find(path)
	if err != nil {
		return err
	}
	defer in.Put()
	return f(in)
}

// in runs f on the directory of a path and the name in it.
func (p *player) in(path string, f func(dir *ext4.Inode, name string) error) error {
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	defer dir.Put()
	if name == "." {
		return ext4.ErrExist
	}
	return f(dir, name)
}

// do does one operation. again is set if it repeats the operation of the last call, which failed.
func (p *player) do(o *diff.Op, again bool) (r outcome) {
	p.again = again
	if f := nameOps[o.Kind]; f != nil {
		r.err = f(p, o)
		return r
	}
	switch o.Kind {
	case diff.OpOpen:
		r.err = p.open(o)
		return r
	case diff.OpClose:
		p.drop(o.FD)
		return r
	case diff.OpSync:
		r.err = p.vol.Sync()
		return r
	}
	if s := p.slots[o.FD]; s != nil {
		return p.data(s, o)
	}
	r.err = errSkipped
	return r
}

func (p *player) open(o *diff.Op) error {
	p.drop(o.FD)
	if o.Flags&unix.O_TMPFILE == unix.O_TMPFILE {
		return p.on(o.Path, func(dir *ext4.Inode) error {
			in, err := dir.Tmpfile(o.Mode, 0, 0)
			if err == nil {
				p.slots[o.FD] = &slot{in: in, flags: unix.O_RDWR}
			}
			return err
		})
	}
	in, err := p.find(o.Path)
	switch {
	case errors.Is(err, ext4.ErrNotExist) && o.Flags&unix.O_CREAT != 0:
		err = p.in(o.Path, func(dir *ext4.Inode, name string) error {
			in, err = dir.Create(name, unix.S_IFREG|o.Mode&0o7777, 0, 0, 0, 0)
			return err
		})
	case err == nil && o.Flags&unix.O_CREAT != 0 && o.Flags&unix.O_EXCL != 0:
		in.Put()
		return ext4.ErrExist
	case err == nil && in.Attr().Mode&unix.S_IFMT != unix.S_IFREG:
		in.Put()
		return errSkipped
	case err == nil && o.Flags&unix.O_TRUNC != 0:
		var zero int64
		if _, err = in.SetAttr(ext4.SetAttr{Size: &zero}); err != nil {
			in.Put()
		}
	}
	if err != nil {
		return err
	}
	p.slots[o.FD] = &slot{in: in, path: o.Path, flags: o.Flags}
	return nil
}
