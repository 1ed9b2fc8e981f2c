package iofault

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// nameOps are the operations on names and attributes.
var nameOps = map[diff.Kind]func(*player, *diff.Op) error{
	diff.OpMkdir: (*player).mkdir, diff.OpRmdir: (*player).rmdir, diff.OpMknod: (*player).mknod,
	diff.OpUnlink: (*player).unlink, diff.OpLink: (*player).link, diff.OpLinkFD: (*player).linkFD,
	diff.OpSymlink: (*player).symlink, diff.OpReadlink: (*player).readlink, diff.OpRename: (*player).rename,
	diff.OpChmod: (*player).chmod, diff.OpChown: (*player).chown, diff.OpUtimens: (*player).utimens,
	diff.OpSetxattr: (*player).setxattr, diff.OpGetxattr: (*player).getxattr, diff.OpListxattr: (*player).listxattr,
	diff.OpRmxattr: (*player).rmxattr, diff.OpReaddir: (*player).readdir, diff.OpSeekdir: (*player).readdir,
	diff.OpStat: (*player).stat, diff.OpStatx: (*player).stat, diff.OpAccess: (*player).stat,
	diff.OpStatfs: (*player).statfs, diff.OpTruncate: (*player).truncate, opTrim: (*player).trim,
}

// opTrim discards all free space. The generator does not make it.
const opTrim diff.Kind = "trim"

// put drops the reference to the inode that an operation returned.
func put(in *ext4.Inode, err error) error {
	if err == nil {
		in.Put()
	}
	return err
}

func (p *player) mkdir(o *diff.Op) error {
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return put(dir.Mkdir(name, o.Mode&0o7777, 0, 0)) })
}

func (p *player) rmdir(o *diff.Op) error {
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return dir.Rmdir(name) })
}

func (p *player) unlink(o *diff.Op) error {
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return dir.Unlink(name) })
}

func (p *player) mknod(o *diff.Op) error {
	mode := o.Mode
	if mode&unix.S_IFMT == 0 {
		mode |= unix.S_IFREG
	}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return ext4.ErrPerm
	}
	major, minor := uint32(0), uint32(0)
	if f := mode & unix.S_IFMT; f == unix.S_IFCHR || f == unix.S_IFBLK {
		major, minor = unix.Major(uint64(o.Off)), unix.Minor(uint64(o.Off))
	}
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return put(dir.Create(name, mode, 0, 0, major, minor)) })
}

func (p *player) link(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		return p.in(o.Path2, func(dir *ext4.Inode, name string) error { return dir.Link(in, name) })
	})
}

func (p *player) linkFD(o *diff.Op) error {
	s := p.slots[o.FD]
	if s == nil {
		return errSkipped
	}
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return dir.Link(s.in, name) })
}

func (p *player) symlink(o *diff.Op) error {
	return p.in(o.Path, func(dir *ext4.Inode, name string) error { return put(dir.Symlink(name, o.Path2, 0, 0)) })
}

func (p *player) readlink(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		if in.Attr().Mode&unix.S_IFMT != unix.S_IFLNK {
			return ext4.ErrInvalid
		}
		_, err := in.Readlink()
		return err
	})
}

func (p *player) rename(o *diff.Op) error {
	if o.Path2 == o.Path || strings.HasPrefix(o.Path2, o.Path+"/") {
		return ext4.ErrInvalid // the kernel refuses it before FUSE
	}
	return p.in(o.Path, func(dir *ext4.Inode, name string) error {
		return p.in(o.Path2, func(to *ext4.Inode, name2 string) error {
			if o.Flags&ext4.RenameWhiteout != 0 {
				return dir.RenameWhiteout(name, to, name2, uint32(o.Flags), 0, 0)
			}
			return dir.Rename(name, to, name2, uint32(o.Flags))
		})
	})
}

func (p *player) chmod(o *diff.Op) error {
	mode := o.Mode & 0o7777
	return p.on(o.Path, func(in *ext4.Inode) error {
		_, err := in.SetAttr(ext4.SetAttr{Mode: &mode})
		return err
	})
}

func (p *player) chown(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error { return chown(in, o) })
}

func (p *player) utimens(o *diff.Op) error {
	now := time.Now()
	return p.on(o.Path, func(in *ext4.Inode) error {
		_, err := in.SetAttr(ext4.SetAttr{Atime: &now, Mtime: &now})
		return err
	})
}

func (p *player) setxattr(o *diff.Op) error {
	if len(o.Value) > 65536 || len(o.Name) > 255 || o.Name == "" {
		return errSkipped
	}
	return p.on(o.Path, func(in *ext4.Inode) error {
		mode := in.Attr().Mode & unix.S_IFMT
		if mode != unix.S_IFREG && mode != unix.S_IFDIR {
			return errSkipped
		}
		return in.Setxattr(o.Name, o.Value, o.Flags&3)
	})
}

func (p *player) getxattr(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		_, err := in.Getxattr(o.Name)
		return err
	})
}

func (p *player) listxattr(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		_, err := in.Listxattr()
		return err
	})
}

func (p *player) rmxattr(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error { return in.Removexattr(o.Name) })
}

// readdir lists a directory and looks up every name in it.
func (p *player) readdir(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		var names []string
		err := in.ReadDir(0, func(e ext4.DirEntry) bool {
			names = append(names, e.Name)
			return true
		})
		for _, n := range names {
			if n == "." || n == ".." || err != nil {
				continue
			}
			if err = put(in.Lookup(n)); errors.Is(err, ext4.ErrNotExist) {
				return fmt.Errorf("%.40q is listed: %v", n, err)
			}
		}
		return err
	})
}

func (p *player) stat(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error { return nil })
}

func (p *player) statfs(*diff.Op) error {
	p.vol.Statfs()
	return nil
}

func (p *player) truncate(o *diff.Op) error {
	return p.on(o.Path, func(in *ext4.Inode) error {
		_, err := in.SetAttr(ext4.SetAttr{Size: &o.Len})
		return err
	})
}

func (p *player) trim(*diff.Op) error {
	_, err := p.vol.Trim(0, 1<<62, 0)
	if errors.Is(err, ext4.ErrNotSup) {
		return nil
	}
	return err
}
