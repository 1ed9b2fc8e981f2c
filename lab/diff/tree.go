package diff

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is all that can be seen of one name of a tree.
type Entry struct {
	Path     string
	Mode     uint32
	UID, GID uint32
	Nlink    uint64
	Rdev     uint64
	Size     int64
	Blocks   int64
	Ino      uint64
	A, M, C  unix.Timespec
	Flags    int    // FS_IOC_GETFLAGS, of files and directories
	Same     string // the first name of the same file, when it is another
	Target   string // of a symbolic link
	Sum      [32]byte
	Xattrs   map[string]string
	Note     string // a violation, such as a wrong size
}

// walkTree lists everything below directory dir, sorted by path.
func walkTree(dir string) ([]Entry, error) {
	fd, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", dir, err)
	}
	w := &walker{first: map[uint64]string{}}
	if err := w.dir(fd, "."); err != nil {
		return nil, err
	}
	return w.list, nil
}

type walker struct {
	list  []Entry
	first map[uint64]string // the first name of each inode
}

// dir walks an open directory, and closes it.
func (w *walker) dir(fd int, name string) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %q: %w", name, err)
	}
	e := entryOf(name, &st)
	w.attrs(&e, fd)
	w.list = append(w.list, e)
	names, err := getdentsAll(fd, 64<<10)
	if err != nil {
		return fmt.Errorf("read directory %q: %w", name, err)
	}
	slices.SortFunc(names, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	subdirs := uint64(0)
	at := len(w.list) - 1
	for _, d := range names {
		if d.name == "." || d.name == ".." {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("stat %q: %w", join(name, d.name), err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			subdirs++
			sub, err := unix.Openat(fd, d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
			if err != nil {
				return fmt.Errorf("open %q: %w", join(name, d.name), err)
			}
			if err := w.dir(sub, join(name, d.name)); err != nil {
				return err
			}
			continue
		}
		w.file(fd, d.name, join(name, d.name), &st)
	}
	if n := w.list[at].Nlink; n != subdirs+2 && n != 1 {
		w.list[at].Note = fmt.Sprintf("%d subdirectories, but %d links", subdirs, n)
	}
	return nil
}

func entryOf(name string, st *unix.Stat_t) Entry {
	e := Entry{Path: name, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size, Blocks: st.Blocks, Ino: st.Ino,
		A: st.Atim, M: st.Mtim, C: st.Ctim}
	if m := st.Mode & unix.S_IFMT; m == unix.S_IFCHR || m == unix.S_IFBLK {
		e.Rdev = st.Rdev
	}
	return e
}

func (w *walker) file(dir int, base, name string, st *unix.Stat_t) {
	e := entryOf(name, st)
	if first, ok := w.first[st.Ino]; ok {
		e.Same = first
	} else {
		w.first[st.Ino] = name
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		b := make([]byte, 8192)
		n, err := unix.Readlinkat(dir, base, b)
		if err != nil || n != int(st.Size) {
			e.Note = fmt.Sprintf("link of %d bytes, readlink: %d, %v", st.Size, n, err)
		}
		e.Target = string(b[:max(n, 0)])
	case unix.S_IFREG:
		fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
		if err != nil {
			e.Note = fmt.Sprintf("open: %v", err)
			break
		}
		w.attrs(&e, fd)
		w.content(&e, fd)
		unix.Close(fd)
	}
	w.list = append(w.list, e)
}

// attrs reads extended attributes and inode flags.
func (w *walker) attrs(e *Entry, fd int) {
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, list)
	if err != nil {
		e.Note = fmt.Sprintf("listxattr: %v", err)
		return
	}
	e.Xattrs = map[string]string{}
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(fd, string(name), value)
		if err != nil {
			e.Note = fmt.Sprintf("getxattr %q: %v", name, err)
			continue
		}
		e.Xattrs[string(name)] = string(value[:n])
	}
	if e.Flags, err = unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err != nil {
		e.Flags = 0
	}
}

var zeroSector [512]byte

// inlineMax is more bytes than any inode holds by itself.
const inlineMax = 4096

func (w *walker) content(e *Entry, fd int) {
	h := sha256.New()
	buf := make([]byte, 256<<10)
	total, used := int64(0), int64(0)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			e.Note = fmt.Sprintf("read at %d of %d: %v", total, e.Size, err)
			return
		}
		if n == 0 {
			break
		}
		h.Write(buf[:n])
		total += int64(n)
		for b := buf[:n]; len(b) > 0; b = b[min(len(b), 512):] {
			if !bytes.Equal(b[:min(len(b), 512)], zeroSector[:min(len(b), 512)]) {
				used++
			}
		}
	}
	if e.Blocks < used && e.Size > inlineMax {
		e.Note = fmt.Sprintf("%d sectors are not zero, but it takes only %d", used, e.Blocks)
	}
	if total != e.Size {
		e.Note = fmt.Sprintf("size %d, but %d bytes are read", e.Size, total)
	}
	h.Sum(e.Sum[:0])
	if s := seekWalk(fd, 0, e.Size); s != "" {
		e.Note = s
	}
}

// comparison says how two trees are compared.
type comparison struct {
	exact bool          // both trees are of one volume: everything must be the same. Else what may differ is left out, as in Stat
	run   time.Time     // when the run began
	grain time.Duration // exact: how far the times of a file may lie apart
}

// differ returns the differences of two trees, one line each.
func differ(l, r []Entry, c comparison) []string {
	var d []string
	add := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	left, right := byPath(l), byPath(r)
	for _, e := range l {
		if right[e.Path] == nil {
			add("names: only left: %s %#o", clip(e.Path), e.Mode)
		}
	}
	for i := range r {
		e := &r[i]
		if e.Note != "" {
			add("note: right: %s: %s", clip(e.Path), e.Note)
		}
		a := left[e.Path]
		if a == nil {
			add("names: only right: %s %#o", clip(e.Path), e.Mode)
			continue
		}
		if a.Note != "" {
			add("note: left: %s: %s", clip(e.Path), a.Note)
		}
		for _, s := range a.differs(e, c) {
			add("%s, of %s", s, clip(e.Path))
		}
	}
	return d
}

func byPath(list []Entry) map[string]*Entry {
	m := map[string]*Entry{}
	for i := range list {
		m[list[i].Path] = &list[i]
	}
	return m
}

func (e *Entry) differs(o *Entry, c comparison) []string {
	var d []string
	cmp := func(what string, a, b any) {
		if a != b {
			d = append(d, fmt.Sprintf("%s: %v, %v", what, a, b))
		}
	}
	dir := e.Mode&unix.S_IFMT == unix.S_IFDIR
	cmp("mode", fmt.Sprintf("%#o", e.Mode), fmt.Sprintf("%#o", o.Mode))
	cmp("uid", e.UID, o.UID)
	cmp("gid", e.GID, o.GID)
	cmp("links", e.Nlink, o.Nlink)
	cmp("device", e.Rdev, o.Rdev)
	cmp("same file as", e.Same, o.Same)
	cmp("target", clip(e.Target), clip(o.Target))
	cmp("content", fmt.Sprintf("%x", e.Sum[:4]), fmt.Sprintf("%x", o.Sum[:4]))
	if !maps.Equal(e.Xattrs, o.Xattrs) {
		cmp("xattrs", fmt.Sprintf("%q", e.Xattrs), fmt.Sprintf("%q", o.Xattrs))
	}
	if c.exact {
		cmp("size", e.Size, o.Size)
		cmp("blocks", e.Blocks, o.Blocks)
		cmp("inode", e.Ino, o.Ino)
		cmp("flags", fmt.Sprintf("%#x", e.Flags), fmt.Sprintf("%#x", o.Flags))
		cmp("atime", e.A, o.A)
		if e.Mode&unix.S_IFMT != unix.S_IFREG || apart(e.M, o.M) > c.grain || apart(e.C, o.C) > c.grain {
			cmp("mtime", e.M, o.M)
			cmp("ctime", e.C, o.C)
		}
		return d
	}
	if !dir {
		cmp("size", e.Size, o.Size)
	}
	cmp("atime", chosen(e.A, c.run), chosen(o.A, c.run))
	cmp("mtime", chosen(e.M, c.run), chosen(o.M, c.run))
	if e.Mode&unix.S_IFMT == unix.S_IFREG && !blocksAgree(e, o) {
		d = append(d, fmt.Sprintf("blocks: %d, %d", e.Blocks, o.Blocks))
	}
	return d
}

func apart(a, b unix.Timespec) time.Duration {
	return time.Unix(a.Unix()).Sub(time.Unix(b.Unix())).Abs()
}

// blocksAgree compares the allocated sectors of two files of the same history. They may differ by the nodes of their extent
// trees, which depend on where the allocator found space. The kernel's ext4 may allocate more: for a write through a map it
// allocates blocks for a whole folio. Neither can have fewer sectors than are not zero: see content.
func blocksAgree(lane, kernel *Entry) bool { return lane.Blocks <= kernel.Blocks+16+kernel.Blocks/20 }

// errTree says that a tree could not be walked.
var errTree = errors.New("walk the tree")
