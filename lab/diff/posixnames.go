package diff

import (
	"sort"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (p *posix) mkdir(o *Op, r *Result)  { r.put(0, unix.Mkdir(o.Path, o.Mode)) }
func (p *posix) rmdir(o *Op, r *Result)  { r.put(0, unix.Rmdir(o.Path)) }
func (p *posix) unlink(o *Op, r *Result) { r.put(0, unix.Unlink(o.Path)) }

// mknod makes the kind of file that Mode says; Off is a device number.
func (p *posix) mknod(o *Op, r *Result) { r.put(0, unix.Mknod(o.Path, o.Mode, int(o.Off))) }

// link gives Path the name Path2; Flags is 0 or AT_SYMLINK_FOLLOW.
func (p *posix) link(o *Op, r *Result) {
	r.put(0, unix.Linkat(unix.AT_FDCWD, o.Path, unix.AT_FDCWD, o.Path2, o.Flags&unix.AT_SYMLINK_FOLLOW))
}

// linkFD gives the file of a slot the name Path.
func (p *posix) linkFD(o *Op, r *Result) {
	r.put(0, unix.Linkat(p.fd(o.FD), "", unix.AT_FDCWD, o.Path, unix.AT_EMPTY_PATH))
}

// symlink makes Path a link to Path2.
func (p *posix) symlink(o *Op, r *Result) { r.put(0, unix.Symlink(o.Path2, o.Path)) }

func (p *posix) readlink(o *Op, r *Result) {
	b := make([]byte, 8192)
	n, err := unix.Readlink(o.Path, b)
	r.put(n, err)
	r.Data = b[:max(n, 0)]
}

func (p *posix) rename(o *Op, r *Result) {
	r.put(0, unix.Renameat2(unix.AT_FDCWD, o.Path, unix.AT_FDCWD, o.Path2, uint(o.Flags)))
}

func (p *posix) chmod(o *Op, r *Result)  { r.put(0, unix.Chmod(o.Path, o.Mode)) }
func (p *posix) fchmod(o *Op, r *Result) { r.put(0, unix.Fchmod(p.fd(o.FD), o.Mode)) }

func (p *posix) chown(o *Op, r *Result) {
	r.put(0, unix.Fchownat(unix.AT_FDCWD, o.Path, o.UID, o.GID, o.Flags&unix.AT_SYMLINK_NOFOLLOW))
}

func (p *posix) fchown(o *Op, r *Result) { r.put(0, unix.Fchown(p.fd(o.FD), o.UID, o.GID)) }

func (p *posix) utimens(o *Op, r *Result) {
	r.put(0, unix.UtimesNanoAt(unix.AT_FDCWD, o.Path, o.Times[:], o.Flags&unix.AT_SYMLINK_NOFOLLOW))
}

// setxattr sets Name of Path; Flags are XATTR_CREATE and XATTR_REPLACE, and AT_SYMLINK_NOFOLLOW beside them.
func (p *posix) setxattr(o *Op, r *Result) {
	f := unix.Setxattr
	if o.Flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		f = unix.Lsetxattr
	}
	r.put(0, f(o.Path, o.Name, o.Value, o.Flags&3))
}

// getxattr reads Name of Path into Len bytes: too few are an error, and 0 returns the size.
func (p *posix) getxattr(o *Op, r *Result) {
	f := unix.Getxattr
	if o.Flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		f = unix.Lgetxattr
	}
	b := make([]byte, o.Len)
	n, err := f(o.Path, o.Name, b)
	r.put(n, err)
	if err == nil && o.Len > 0 {
		r.Data = b[:n]
	}
}

func (p *posix) listxattr(o *Op, r *Result) {
	b := make([]byte, o.Len)
	n, err := unix.Llistxattr(o.Path, b)
	r.put(n, err)
	if err == nil && o.Len > 0 {
		r.Names = strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00")
		sort.Strings(r.Names)
	}
}

func (p *posix) rmxattr(o *Op, r *Result) {
	f := unix.Removexattr
	if o.Flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		f = unix.Lremovexattr
	}
	r.put(0, f(o.Path, o.Name))
}

// dirent is one entry as getdents64(2) gives it.
type dirent struct {
	name string
	ino  uint64
	typ  uint8
	next int64 // position after it
}

// sizeDirent is the part of struct linux_dirent64 before the name.
const sizeDirent = 19

// getdents reads the entries that fit into size bytes.
func getdents(fd, size int) ([]dirent, error) {
	b := make([]byte, size)
	n, err := unix.Getdents(fd, b)
	var list []dirent
	for b = b[:max(n, 0)]; len(b) > 0; {
		d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
		name, _, _ := strings.Cut(string(b[sizeDirent:d.Reclen]), "\x00")
		list = append(list, dirent{name: name, ino: d.Ino, typ: d.Type, next: d.Off})
		b = b[d.Reclen:]
	}
	return list, err
}

// getdentsAll reads the rest of a directory.
func getdentsAll(fd, size int) ([]dirent, error) {
	var all []dirent
	for {
		list, err := getdents(fd, size)
		if err != nil || len(list) == 0 {
			return all, err
		}
		all = append(all, list...)
	}
}

func openDir(name string) (int, error) {
	return unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
}
