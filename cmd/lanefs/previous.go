package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
)

// The previous mount, of the same device or at the same directory, may not have ended: umount(8) returns before the daemon has closed
// the device. The kernel's file systems make the next mount wait for that, and so does lanefs mount, with a limit.

// previousTimeout is that limit, unless --timeout says otherwise.
const previousTimeout = time.Minute

// daemons are the running daemons of the caller's user.
func daemons() []*served { return recorded(held) }

// recorded is what the locks of the caller's user say, those for whose path which is true.
func recorded(which func(path string) bool) (all []*served) {
	for _, dir := range lookDirs(os.Geteuid()) {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if !strings.HasSuffix(path, lockEnd) {
				continue
			}
			if s := readServed(path); s != nil && which(path) {
				all = append(all, s)
			}
		}
	}
	return all
}

// held says whether a daemon holds a lock.
func held(path string) bool {
	f, err := openLock(path)
	if err != nil {
		return false
	}
	defer f.Close() // and with it the lock, if we got it: see claim
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// fileOf is what a device is, whatever its name: a name may lead to another file or device later. Of an array it is that of all members,
// in any order. What is no file, such as a PCI function, is what it is called.
func fileOf(device string) string {
	members := splitList(device)
	for i, name := range members {
		var st unix.Stat_t
		if unix.Stat(name, &st) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			members[i] = fmt.Sprintf("block device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFREG:
			members[i] = fmt.Sprintf("inode %d of %d:%d", st.Ino, unix.Major(st.Dev), unix.Minor(st.Dev))
		}
	}
	slices.Sort(members)
	return strings.Join(members, ",")
}

// has says whether a name leads to what the daemon has open. The daemon's own name for it is not followed: it may lead to a file system that does not answer.
func (s *served) has(device string) bool { return s.File == fileOf(device) }

// mounts are the mounts of what a daemon serves, in this mount namespace.
func (s *served) mounts() []*mountinfo.Info {
	all, _ := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !s.serves(m), false })
	return all
}

// serves says whether m is a mount of what the daemon serves. The number alone does not say it: the kernel gives it to another
// mount while a daemon whose mount is gone is still closing its device, which no other daemon can have until then.
func (s *served) serves(m *mountinfo.Info) bool {
	return fs.Ours(m) && s.Number == fmt.Sprintf("%d:%d", m.Major, m.Minor) && s.Device == m.Source
}

// ending says what keeps a LaneFS mount from being there or gone, in words: it is being unmounted, or its daemon does not answer for now. Empty: it goes on.
func ending(m *mountinfo.Info) string {
	if !fs.Ours(m) {
		return ""
	}
	switch r, err := query(m, request{Op: "state"}, stateTimeout, nil); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("the daemon of %q, which does not answer%s", m.Mountpoint, standingOf(m))
	case err == nil && r.Leaving:
		return fmt.Sprintf("the unmount of %q, which is under way", m.Mountpoint)
	}
	return ""
}

// stateTimeout is how long a daemon is waited for that is asked again if it does not answer.
const stateTimeout = time.Second

// blockedBy is what keeps DEVICE from being mounted at DIR and will go soon, in words; empty if nothing does. by is its daemon, where no mount of
// it is seen here. second is the daemon that serves the device and goes on, if there is one.
func (cfg *mountConfig) blockedBy() (what string, by, second *served) {
	if m, err := fs.MountedAt(cfg.Dir); err == nil && m != nil {
		if what := ending(m); what != "" {
			return what, nil, nil
		}
	}
	for _, s := range daemons() {
		ours, here := s.has(cfg.Device), s.Dir == cfg.Dir
		if !ours && !here {
			continue
		}
		all := s.mounts()
		switch {
		case ours && len(all) > 0:
			if what := ending(all[0]); what != "" {
				return what, nil, nil
			}
			second = s
		case ours:
			return fmt.Sprintf("process %d, which has %q open and is mounting it at %q, or has served it there and is ending%s", s.PID, s.Device, s.Dir, standing(s.PID)), s, nil
		case len(all) == 0:
			return fmt.Sprintf("process %d, which is mounting %q at %q, or has served it there and is ending%s", s.PID, s.Device, s.Dir, standing(s.PID)), s, nil
		}
	}
	return "", nil, second
}

// places says in which other mount namespaces the daemon's mount is, which ends with the last of them; empty if none is seen.
func (s *served) places() string {
	var m mountinfo.Info
	if s == nil {
		return ""
	}
	if n, _ := fmt.Sscanf(s.Number, "%d:%d", &m.Major, &m.Minor); n != 2 {
		return ""
	}
	m.Source = s.Device
	all := otherNamespaces(&m)
	if len(all) == 0 {
		return ""
	}
	var names, commands []string
	for _, h := range all {
		names = append(names, h.String())
		commands = append(commands, fmt.Sprintf("nsenter --mount --target %s umount %s", h.pid, h.at))
	}
	return fmt.Sprintf("; it is still mounted in the mount namespace of %s: unmount it there (%s)", strings.Join(names, ", "), strings.Join(commands, "; "))
}

// await returns when the previous mount has ended, or will not. second is a daemon that serves the device and goes on.
func (cfg *mountConfig) await(timeout time.Duration, out io.Writer) (second *served, err error) {
	began := time.Now()
	for say := reportAfter; ; time.Sleep(20 * time.Millisecond) {
		what, by, second := cfg.blockedBy()
		if what == "" {
			return second, nil
		}
		waited := time.Since(began)
		if waited > timeout {
			return nil, fmt.Errorf("%q cannot be mounted at %q: waited %v for %s%s", cfg.Device, cfg.Dir, timeout, what, by.places())
		}
		if waited > say {
			fmt.Fprintf(out, "lanefs: %q: still waiting for %s (%v)%s\n", cfg.Dir, what, waited.Round(time.Second), by.places())
			say *= 2
		}
	}
}
