package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// mark is in the name of everything that churn makes.
const mark = "lanefs."

// churn changes a volume and records what it changed.
type churn struct {
	v       *ext4.FS
	done    int             // changes that succeeded
	touched map[string]bool // paths of the volume's own files that were changed
	refused []error         // the errors of the other changes
}

// directory looks a path up.
func (c *churn) directory(p string) (*ext4.Inode, error) {
	i, err := c.v.Root()
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(strings.Trim(p, "/"), "/") {
		if name == "" {
			continue
		}
		next, err := i.Lookup(name)
		i.Put()
		if err != nil {
			return nil, err
		}
		i = next
	}
	return i, nil
}

// try records the result of a change. It reports whether the change succeeded.
func (c *churn) try(what string, err error) bool {
	if err == nil {
		c.done++
		return true
	}
	c.refused = append(c.refused, fmt.Errorf("%s: %w", what, err))
	return false
}

// add makes, changes and removes files of its own in the directory at p.
func (c *churn) add(p string) {
	d, err := c.directory(p)
	if !c.try("lookup "+p, err) {
		return
	}
	defer d.Put()
	at := func(what string) string { return what + " in " + p }
	block := int64(c.v.BlockSize())
	f, err := d.Create(mark+"1", unix.S_IFREG|0o640, 10, 20, 0, 0)
	if c.try(at("create"), err) {
		for _, off := range []int64{0, 3 * block, 5000, 20 * block, 300 * block} {
			_, err := f.Write(off, bytes.Repeat([]byte("lane"), 777))
			c.try(at("write"), err)
		}
		c.try(at("fallocate"), f.Fallocate(ext4.FallocKeepSize, 5*block, 10*block))
		c.try(at("punch"), f.Fallocate(ext4.FallocKeepSize|ext4.FallocPunchHole, 2000, 2*block))
		for _, size := range []int64{10 * block, 1 << 20, 1500} {
			_, err := f.SetAttr(ext4.SetAttr{Size: &size})
			c.try(at("truncate"), err)
		}
		for _, n := range []int{10, 200, 700} {
			c.try(at("setxattr"), f.Setxattr(fmt.Sprintf("user.x%d", n), bytes.Repeat([]byte("v"), n), 0))
		}
		c.try(at("removexattr"), f.Removexattr("user.x700"))
		c.try(at("link"), d.Link(f, mark+"2"))
		c.try(at("rename"), d.Rename(mark+"1", d, mark+"keep", 0))
		f.Put()
	}
	sub, err := d.Mkdir(mark+"d", 0o755, 0, 0)
	if c.try(at("mkdir"), err) {
		for k := range 40 {
			g, err := sub.Create(fmt.Sprintf("%s%d %s", mark, k, strings.Repeat("n", 100)), unix.S_IFREG|0o600, 0, 0, 0, 0)
			if c.try(at("create"), err) {
				g.Put()
			}
		}
		c.try(at("rename"), d.Rename(mark+"2", sub, mark+"moved", 0))
		c.try(at("unlink"), sub.Unlink(mark+"moved"))
		for k := range 40 {
			c.try(at("unlink"), sub.Unlink(fmt.Sprintf("%s%d %s", mark, k, strings.Repeat("n", 100))))
		}
		deep, err := sub.Mkdir(mark+"deep", 0o755, 0, 0)
		if c.try(at("mkdir"), err) {
			c.try(at("rename"), sub.Rename(mark+"deep", d, mark+"dir", 0))
			deep.Put()
		}
		sub.Put()
		c.try(at("rmdir"), d.Rmdir(mark+"d"))
	}
	for _, n := range []int{30, 300} {
		l, err := d.Symlink(fmt.Sprintf("%sl%d", mark, n), strings.Repeat("t", n), 0, 0)
		if c.try(at("symlink"), err) {
			l.Put()
		}
	}
	tmp, err := d.Tmpfile(unix.S_IFREG|0o600, 0, 0)
	if c.try(at("tmpfile"), err) {
		_, err := tmp.Write(0, []byte("gone soon"))
		c.try(at("write"), err)
		tmp.Put()
	}
}

// change changes the volume's own files in the directory at p, each in one of several ways.
func (c *churn) change(p string) {
	d, err := c.directory(p)
	if !c.try("lookup "+p, err) {
		return
	}
	defer d.Put()
	names, err := list(d)
	if !c.try("readdir "+p, err) {
		return
	}
	for k, n := range names {
		if n == "." || n == ".." || strings.Contains(n, mark) || k > 200 {
			continue
		}
		full := path.Join(p, n)
		i, err := d.Lookup(n)
		if !c.try("lookup "+full, err) {
			continue
		}
		a := i.Attr()
		c.touched[full] = true
		switch kind := a.Mode & unix.S_IFMT; {
		case kind == unix.S_IFDIR:
			if k%2 == 0 {
				c.try("rmdir "+full, d.Rmdir(n))
			} else {
				c.try("chmod "+full, chmod(i))
			}
		case k%5 == 0 && kind == unix.S_IFREG:
			size := a.Size / 2
			_, err := i.SetAttr(ext4.SetAttr{Size: &size})
			c.try("truncate "+full, err)
		case k%5 == 1 && kind == unix.S_IFREG:
			_, err := i.Write(a.Size, bytes.Repeat([]byte("more"), 2000))
			c.try("append "+full, err)
		case k%5 == 2 && kind == unix.S_IFREG:
			_, err := i.Write(min(a.Size, 5000)/2, bytes.Repeat([]byte("over"), 500))
			c.try("overwrite "+full, err)
		case k%5 == 3:
			c.try("rename "+full, d.Rename(n, d, mark+n, 0))
			c.try("setxattr "+full, i.Setxattr("user.lanefs", bytes.Repeat([]byte("v"), 100), 0))
		default:
			c.try("chmod "+full, chmod(i))
			c.try("unlink "+full, d.Unlink(n))
		}
		i.Put()
	}
}

func chmod(i *ext4.Inode) error {
	mode := uint32(0o751)
	_, err := i.SetAttr(ext4.SetAttr{Mode: &mode})
	return err
}

// expected reports whether a damaged volume may return the error.
func expected(err error) bool {
	for _, e := range []error{ext4.ErrCorrupt, ext4.ErrReadOnly, ext4.ErrNoSpace, ext4.ErrNotSup, ext4.ErrPerm, ext4.ErrNotExist,
		ext4.ErrNoAttr, ext4.ErrExist, ext4.ErrNotEmpty, ext4.ErrTooManyLink, ext4.ErrTooBig, ext4.ErrNameTooLong, ext4.ErrNotDir} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
