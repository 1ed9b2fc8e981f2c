package diff

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// probed is the attributes of a file at one moment.
type probed struct {
	what string
	err  unix.Errno
	st   unix.Stat_t
	at   time.Time
}

// look takes the attributes of what o touches.
func (p *posix) look(o *Op) []probed {
	now := time.Now()
	var list []probed
	add := func(what string, err error, st unix.Stat_t) {
		list = append(list, probed{what: what, err: errno(err), st: st, at: now})
	}
	at := func(what, name string, flags int) {
		var st unix.Stat_t
		err := unix.Fstatat(unix.AT_FDCWD, name, &st, flags)
		add(what, err, st)
	}
	if usesPath[o.Kind] {
		at("parent of Path", parent(o.Path), 0)
		at("Path", o.Path, unix.AT_SYMLINK_NOFOLLOW)
		at("target of Path", o.Path, 0)
	}
	if usesPath2[o.Kind] {
		at("parent of Path2", parent(o.Path2), 0)
		at("Path2", o.Path2, unix.AT_SYMLINK_NOFOLLOW)
	}
	fd := func(what string, slot int) {
		var st unix.Stat_t
		err := unix.Fstat(p.fd(slot), &st)
		add(what, err, st)
	}
	if usesFD[o.Kind] {
		fd("slot", o.FD)
	}
	if o.Kind == OpCopyRange || o.Kind == OpSendfile {
		fd("slot 2", o.FD2)
	}
	return list
}

// parent returns the directory of a path without cleaning it: "a/.." is the parent of what a links to, if a is a symbolic link.
func parent(name string) string {
	name = strings.TrimRight(name, "/")
	i := strings.LastIndexByte(name, '/')
	switch {
	case i < 0:
		return "."
	case i == 0:
		return "/"
	}
	return name[:i]
}

func (p *posix) compareProbes(o *Op, before, after []probed) []Probe {
	out := make([]Probe, len(after))
	for i, a := range after {
		b := before[i]
		out[i] = Probe{What: a.what, Errno: a.err}
		if a.err != 0 {
			continue
		}
		out[i].Stat = statOf(&a.st, p.run)
		newSlot := a.what == "slot" && o.Kind == OpOpen // another file, perhaps with the number of the one before
		if b.err == 0 && b.st.Ino == a.st.Ino && !newSlot {
			for k, pair := range [][2]unix.Timespec{{b.st.Atim, a.st.Atim}, {b.st.Mtim, a.st.Mtim}, {b.st.Ctim, a.st.Ctim}} {
				if pair[0] != pair[1] {
					out[i].Changed |= 1 << k
				}
			}
			grain := func(t unix.Timespec) bool {
				d := b.at.Sub(time.Unix(t.Unix()))
				return d > -clockGrain && d < 2*clockGrain
			}
			out[i].Grain = a.st.Mode&unix.S_IFMT == unix.S_IFREG && (grain(b.st.Ctim) || grain(b.st.Mtim))
		}
	}
	return out
}

// statOf leaves out what may differ between file systems: inode and device numbers, sizes of directories, block addresses.
func statOf(st *unix.Stat_t, run time.Time) Stat {
	s := Stat{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size,
		Atime: chosen(st.Atim, run), Mtime: chosen(st.Mtim, run)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.Size = 0
	case unix.S_IFCHR, unix.S_IFBLK:
		s.Rdev = st.Rdev
	}
	if s.Mtime == (unix.Timespec{}) {
		s.Order = time.Unix(st.Mtim.Unix()).Compare(time.Unix(st.Ctim.Unix()))
	}
	return s
}

// chosen returns t if utimensat(2) set it, or zero if it is a time of the run itself.
func chosen(t unix.Timespec, run time.Time) unix.Timespec {
	d := time.Unix(t.Unix()).Sub(run)
	if d > -runSlack && d < 24*time.Hour {
		return unix.Timespec{}
	}
	return t
}

// runSlack is how long before a run its images may have been made.
const runSlack = time.Hour

func (p *posix) stat(o *Op, r *Result) {
	var st unix.Stat_t
	err := unix.Fstatat(unix.AT_FDCWD, o.Path, &st, o.Flags&unix.AT_SYMLINK_NOFOLLOW)
	r.put(0, err)
	if err == nil {
		r.Names = []string{statOf(&st, p.run).String()}
	}
}

func (p *posix) fstat(o *Op, r *Result) {
	var st unix.Stat_t
	err := unix.Fstat(p.fd(o.FD), &st)
	r.put(0, err)
	if err == nil {
		r.Names = []string{statOf(&st, p.run).String()}
	}
}

// statx reads the birth time, with AT_STATX_FORCE_SYNC too: the kernel's cached attributes must be those of the file system.
func (p *posix) statx(o *Op, r *Result) {
	var cached unix.Stat_t
	cerr := unix.Fstatat(unix.AT_FDCWD, o.Path, &cached, unix.AT_SYMLINK_NOFOLLOW)
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, o.Path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	r.put(0, err)
	if err != nil || cerr != nil {
		return
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		r.Ret = 1
		if b := time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)); b.Before(p.run.Add(-runSlack)) || b.After(time.Now()) {
			r.Note = fmt.Sprintf("birth time %v is not in the run, which began at %v", b, p.run)
		}
	}
	// But for the blocks, which only the file system counts.
	now := fmt.Sprint(st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, st.Mtime.Sec, st.Mtime.Nsec, st.Ctime.Sec, st.Ctime.Nsec)
	old := fmt.Sprint(cached.Mode, cached.Nlink, cached.Uid, cached.Gid, cached.Size, cached.Mtim.Sec, cached.Mtim.Nsec,
		cached.Ctim.Sec, cached.Ctim.Nsec)
	if now != old {
		r.Note = fmt.Sprintf("the kernel has cached other attributes than the file system has: %s, %s", old, now)
	}
}

func (p *posix) access(o *Op, r *Result) {
	r.put(0, unix.Faccessat2(unix.AT_FDCWD, o.Path, o.Mode&7, unix.AT_EACCESS|o.Flags&unix.AT_SYMLINK_NOFOLLOW))
}

func (p *posix) statfs(o *Op, r *Result) {
	var st unix.Statfs_t
	err := unix.Statfs(o.Path, &st)
	r.put(0, err)
	if err != nil {
		return
	}
	r.Ret = int64(st.Blocks)
	r.Names = []string{fmt.Sprintf("bsize %d frsize %d namelen %d files %d", st.Bsize, st.Frsize, st.Namelen, st.Files)}
	if st.Bfree > st.Blocks || st.Bavail > st.Bfree || st.Ffree > st.Files {
		r.Note = fmt.Sprintf("statfs: %d blocks, %d free, %d available; %d files, %d free", st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree)
	}
}
