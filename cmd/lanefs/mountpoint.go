package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/fs"
)

// resolveDir makes dir absolute and free of symbolic links. The last element may be a mount whose daemon is dead, for which
// stat fails: it is then left as it is.
func resolveDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the mount point is an empty name; name a directory")
	}
	abs, err := absolute(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		remedy := ""
		if errors.Is(err, os.ErrNotExist) {
			remedy = ": create it first"
		}
		return "", fmt.Errorf("mount point %q: %w%s", dir, reason(err), remedy)
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

// absolute is filepath.Abs with an error that a user understands.
func absolute(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", fmt.Errorf("%q: the working directory is gone (%w): change to another, or give an absolute name", name, err)
	}
	return abs, nil
}

// checkNames refuses names that are not UTF-8: they are written down as JSON, for the daemon and for commands that look for its mount.
func (c *mountConfig) checkNames() error {
	for _, name := range []string{c.Device, c.Dir, c.Log} {
		if !utf8.ValidString(name) {
			return fmt.Errorf("%q: the name is not UTF-8; rename it", name)
		}
	}
	return nil
}

// checkOwnFiles refuses a mount over the daemon's own files. Its sockets would be on the mount that it serves: nobody finds what the mount hides, and a
// socket that the mount holds keeps it busy for as long as the daemon lives.
func (c *mountConfig) checkOwnFiles() error {
	if run := runDirs(os.Geteuid())[0]; liesIn(run, c.Dir) {
		return fmt.Errorf("mount point %q: the daemon's own files are in %q, and the mount would hide them: name another directory", c.Dir, run)
	}
	if strings.HasPrefix(c.Metrics, "/") && liesIn(c.Metrics, c.Dir) {
		return fmt.Errorf("metrics=%s: a socket on the mount itself would keep it busy: name a path outside of %q", c.Metrics, c.Dir)
	}
	if c.Log != "" && liesIn(c.Log, c.Dir) {
		return fmt.Errorf("log=%s: the mount would hide it: name a path outside of %q", c.Log, c.Dir)
	}
	return nil
}

// liesIn: is name the directory dir, which has no links in it, or below it? What does not exist lies in nothing, but for a name that is to be made.
func liesIn(name, dir string) bool {
	real, err := resolveDir(name)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(dir, real)
	return err == nil && filepath.IsLocal(rel)
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
