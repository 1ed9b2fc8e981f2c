package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// root is the directory below which a machine's files are; empty is this machine.
type root string

func (r root) path(p string) string { return filepath.Join("/", string(r), p) }

func (r root) exists(p string) bool {
	_, err := os.Stat(r.path(p))
	return err == nil
}

// text is a file's contents without the white space around them, empty if it cannot be read.
func (r root) text(p string) string {
	b, _ := os.ReadFile(r.path(p))
	return strings.TrimSpace(string(b))
}

func (r root) number(p string) (int64, bool) {
	n, err := strconv.ParseInt(r.text(p), 0, 64)
	return n, err == nil
}

// names of what is in a directory.
func (r root) names(p string) (names []string) {
	list, _ := os.ReadDir(r.path(p))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// usable says whether this process may read and write a node, and why not.
func (r root) usable(p string) error { return unix.Access(r.path(p), unix.R_OK|unix.W_OK) }
