package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/fs"
)

// resolveDir makes dir absolute and free of symbolic links. The last element may be a mount whose daemon is dead, for which
// stat fails: it is then left as it is.
func resolveDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the mount point is an empty name; name a directory")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("mount point %q: %w: create it first", dir, reason(err))
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

// reason is err without the operation and the path, which the message around it has.
func reason(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// mounter is the uid that a FUSE mount belongs to, -1 if it does not say.
func mounter(m *mountinfo.Info) int {
	for _, o := range strings.Split(m.VFSOptions, ",") {
		if v, ok := strings.CutPrefix(o, "user_id="); ok {
			if n, err := strconv.Atoi(v); err == nil {
				return n
			}
		}
	}
	return -1
}

// ourMount is the LaneFS mount at a directory.
func ourMount(arg string) (*mountinfo.Info, error) {
	dir, err := resolveDir(arg)
	if err != nil {
		return nil, err
	}
	m, err := fs.MountedAt(dir)
	if err != nil {
		return nil, err
	}
	if m == nil {
		if _, err := os.Lstat(dir); err != nil {
			return nil, fmt.Errorf("%q: %w", arg, reason(err))
		}
		return nil, fmt.Errorf("%q is not a mount point: mount it first, or see which there are with findmnt -t fuse.lanefs", arg)
	}
	if !fs.Ours(m) {
		return nil, fmt.Errorf("%q is not a LaneFS mount: %s of type %s is mounted there; findmnt -t fuse.lanefs lists those there are", arg, m.Source, m.FSType)
	}
	return m, nil
}

// firstLine is the first line of s that says something, or otherwise.
func firstLine(s, otherwise string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return otherwise
}
