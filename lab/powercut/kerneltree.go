package powercut

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/files"
)

// kernelTree reads a volume that the kernel has mounted at dir.
func kernelTree(dir string) (*Tree, error) {
	t := &Tree{Nodes: map[uint64]*files.Node{}}
	ino, err := t.addKernel(dir)
	t.Root = ino
	return t, err
}

func (t *Tree) addKernel(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if t.Nodes[st.Ino] != nil {
		return st.Ino, nil
	}
	n := &files.Node{ID: files.ID{Ino: st.Ino}, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Links: uint32(st.Nlink), Size: st.Size}
	t.Nodes[st.Ino] = n
	var err error
	if n.Xattrs, err = kernelXattrs(path); err != nil {
		return 0, fmt.Errorf("%s: xattrs: %w", path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		n.Target, err = os.Readlink(path)
	case unix.S_IFREG:
		n.Content, err = os.ReadFile(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Dev = uint64(unix.Major(st.Rdev))<<32 | uint64(unix.Minor(st.Rdev))
	case unix.S_IFDIR:
		n.Size = 0
		n.Entries = map[string]uint64{}
		var list []os.DirEntry
		list, err = os.ReadDir(path)
		for _, e := range list {
			ino, err := t.addKernel(filepath.Join(path, e.Name()))
			if err != nil {
				return 0, err
			}
			n.Entries[e.Name()] = ino
		}
	}
	return st.Ino, err
}

func kernelXattrs(path string) (map[string]string, error) {
	m := map[string]string{}
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if err != nil || n == 0 {
		return m, err
	}
	for _, name := range strings.Split(string(bytes.TrimSuffix(b[:n], []byte{0})), "\x00") {
		v := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(path, name, v)
		if err != nil {
			return nil, err
		}
		m[name] = string(v[:k])
	}
	return m, nil
}
