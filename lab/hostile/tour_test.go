package hostile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// tour is what a walk of a volume found.
type tour struct {
	files map[string]string // by path: a summary that is equal for equal files
	dirs  []string          // in the order of the walk
	errs  []error
}

// Limits of a tour; more means a loop.
const (
	maxNames   = 200_000
	maxContent = 32 << 20 // bytes of one file, holes apart
)

var errTooMuch = errors.New("a tour without end")

// walkAll reads the whole volume: every name, attribute, byte and link. It records what it cannot read, and continues.
func walkAll(v *ext4.FS) *tour {
	w := &tour{files: map[string]string{}}
	root, err := v.Root()
	if err != nil {
		w.fail("/", "root", err)
		return w
	}
	defer root.Put()
	w.visit("/", root, map[uint32]bool{})
	return w
}

func (w *tour) fail(p, what string, err error) {
	w.errs = append(w.errs, fmt.Errorf("%s: %s: %w", p, what, err))
}

func (w *tour) visit(p string, i *ext4.Inode, above map[uint32]bool) {
	if len(w.files) > maxNames {
		w.fail(p, "walk", errTooMuch)
		return
	}
	a := i.Attr()
	size := a.Size
	dir := a.Mode&unix.S_IFMT == unix.S_IFDIR
	if dir {
		size = 0
	}
	ok := true
	note := func(what string, err error) {
		if err != nil {
			w.fail(p, what, err)
			ok = false
		}
	}
	h := sha256.New()
	note("xattrs", hashXattrs(h, i))
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		note("read", hashContent(h, i, size))
	case unix.S_IFLNK:
		target, err := i.Readlink()
		note("readlink", err)
		fmt.Fprintf(h, "-> %q", target)
	}
	if ok {
		w.files[p] = fmt.Sprintf("%o %d:%d size %d dev %d,%d %x", a.Mode, a.UID, a.GID, size, a.Major, a.Minor, h.Sum(nil)[:8])
	}
	if !dir || above[a.Ino] {
		return
	}
	above[a.Ino] = true // hard links to directories make circles
	w.dirs = append(w.dirs, p)
	names, err := list(i)
	if err != nil {
		w.fail(p, "readdir", err)
	}
	for _, n := range names {
		if n == "." || n == ".." {
			continue
		}
		c, err := i.Lookup(n)
		if err != nil {
			w.fail(path.Join(p, n), "lookup", err)
			continue
		}
		w.visit(path.Join(p, n), c, above)
		c.Put()
	}
	if up, err := i.Lookup(".."); err != nil {
		w.fail(p, "lookup ..", err)
	} else {
		up.Put()
	}
}

// list reads the names of a directory, some at a time.
func list(i *ext4.Inode) ([]string, error) {
	var names []string
	cookie := uint64(0)
	for {
		n := 0
		err := i.ReadDir(cookie, func(e ext4.DirEntry) bool {
			if n++; n > 50 {
				return false
			}
			names = append(names, e.Name)
			cookie = e.Cookie
			return true
		})
		if err != nil || n <= 50 {
			return names, err
		}
		if len(names) > maxNames {
			return names, errTooMuch
		}
	}
}

// hashContent hashes the data of a file and skips holes.
func hashContent(h io.Writer, i *ext4.Inode, size int64) error {
	read := int64(0)
	for off := int64(0); off < size; {
		data, err := i.Seek(off, ext4.SeekData)
		if errors.Is(err, ext4.ErrNoData) {
			return nil
		}
		if err != nil {
			return err
		}
		if data < off || data >= size {
			return fmt.Errorf("data at %d, looked for from %d of %d on", data, off, size)
		}
		hole, err := i.Seek(data, ext4.SeekHole)
		if err != nil {
			return err
		}
		if hole <= data || hole > size {
			return fmt.Errorf("hole at %d behind data at %d of %d", hole, data, size)
		}
		for off = data; off < hole; {
			d, err := i.Read(off, int(min(hole-off, 1<<20)))
			if err != nil {
				return err
			}
			b := d.Bytes()
			if len(b) == 0 {
				d.Release()
				return fmt.Errorf("nothing read at %d of %d", off, size)
			}
			if b[0] != 0 || !bytes.Equal(b[1:], b[:len(b)-1]) { // e2fsck may fill a hole
				fmt.Fprintf(h, "%d:", off)
				_, _ = h.Write(b)
			}
			off += int64(len(b))
			read += int64(len(b))
			d.Release()
		}
		if read > maxContent {
			fmt.Fprintf(h, "...")
			return nil
		}
	}
	return nil
}

func hashXattrs(h io.Writer, i *ext4.Inode) error {
	names, err := i.Listxattr()
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		b, err := i.Getxattr(n)
		if err != nil && !errors.Is(err, ext4.ErrNotSup) {
			return fmt.Errorf("%q: %w", n, err)
		}
		fmt.Fprintf(h, "%q=%q,", n, b)
	}
	return nil
}
