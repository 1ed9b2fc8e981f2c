package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resolveDir makes dir absolute and free of symbolic links. The last element may be a dead mount, which cannot be looked
// at, so that it is resolved only when it can be.
func resolveDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the mount point is an empty name")
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
		return "", fmt.Errorf("mount point %q: %w", dir, reason(err))
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

// mountEntry is a line of /proc/self/mountinfo.
type mountEntry struct {
	Dir    string
	Type   string
	Source string
	UID    int // user_id of a FUSE mount, -1 for others
}

// LaneFS says whether the mount is one of ours.
func (m *mountEntry) LaneFS() bool { return m.Type == "fuse.lanefs" }

// findMount is what is mounted on dir, the topmost if several are; nil when nothing is.
func findMount(dir string) (*mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := parseMounts(f)
	if err != nil {
		return nil, fmt.Errorf("/proc/self/mountinfo: %w", err)
	}
	var found *mountEntry
	for _, m := range all {
		if m.Dir == dir {
			found = m
		}
	}
	return found, nil
}

// parseMounts reads the format of proc_pid_mountinfo(5).
func parseMounts(r io.Reader) ([]*mountEntry, error) {
	var all []*mountEntry
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			return nil, fmt.Errorf("cannot read the line %q", sc.Text())
		}
		m := &mountEntry{Dir: unescape(l[4]), Type: r[0], Source: unescape(r[1]), UID: -1}
		for _, o := range strings.Split(r[2], ",") {
			if v, ok := strings.CutPrefix(o, "user_id="); ok {
				if n, err := strconv.Atoi(v); err == nil {
					m.UID = n
				}
			}
		}
		all = append(all, m)
	}
	return all, sc.Err()
}

// unescape undoes the kernel's \040 for what would end a field.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// dead says that a mount's daemon is gone: nothing under it answers. ECONNABORTED is what a request gets that was
// waiting when the daemon died.
func dead(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// prepareMountpoint says whether dir can be mounted on, after it has cleared away what a killed daemon left.
func prepareMountpoint(dir string) error {
	m, err := findMount(dir)
	if err != nil {
		return err
	}
	if m != nil && m.LaneFS() && dead(dir) {
		if err := detach(dir); err != nil {
			return fmt.Errorf("mount point %q: a dead lanefs is still mounted there and cannot be cleared: %w", dir, err)
		}
		if m, err = findMount(dir); err != nil {
			return err
		}
	}
	if m != nil {
		return fmt.Errorf("mount point %q is busy: %s of type %s is mounted there", dir, m.Source, m.Type)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("mount point %q: %w", dir, reason(err))
	}
	if !st.IsDir() {
		return fmt.Errorf("mount point %q is not a directory", dir)
	}
	return nil
}

// detach takes a mount out of the tree though it is in use, by the kernel for root and by fusermount3 for its owner.
func detach(dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH)
	}
	return fusermount("-u", "-z", dir)
}

func fusermount(args ...string) error {
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		return errors.New("fusermount3 is missing: install fuse3")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3: %s", firstLine(string(out), err.Error()))
	}
	return nil
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
