package diff

import (
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// posix runs Ops by system calls in the directory where the process stands. It is used by one thread only, which stays
// on its operating system thread: users are changed for that thread alone.
type posix struct {
	slots    [Slots]int // descriptors, -1: closed
	run      time.Time  // when the run began: times after it are the run's own
	probe    bool       // look at attributes before and after each Op
	sabotage string     // see sabotages
}

func newPosix(run time.Time, probe bool, sabotage string) *posix {
	p := &posix{run: run, probe: probe, sabotage: sabotage}
	for i := range p.slots {
		p.slots[i] = -1
	}
	unix.Umask(0o022)
	return p
}

// posixOps says how each Kind is run.
var posixOps = map[Kind]func(*posix, *Op, *Result){
	OpOpen: (*posix).open, OpClose: (*posix).close,
	OpRead: (*posix).read, OpWrite: (*posix).write, OpPread: (*posix).pread, OpPwrite: (*posix).pwrite,
	OpPwritev: (*posix).pwritev, OpMmapRead: (*posix).mmapRead, OpMmapWrite: (*posix).mmapWrite,
	OpLseek: (*posix).lseek, OpSeekMap: (*posix).seekMap, OpFtruncate: (*posix).ftruncate, OpTruncate: (*posix).truncate,
	OpFallocate: (*posix).fallocate, OpCopyRange: (*posix).copyRange, OpSendfile: (*posix).sendfile,
	OpFsync: (*posix).fsync, OpFdatasync: (*posix).fdatasync, OpDrop: (*posix).drop, OpFstat: (*posix).fstat,
	OpStat: (*posix).stat, OpStatx: (*posix).statx, OpAccess: (*posix).access,
	OpMkdir: (*posix).mkdir, OpRmdir: (*posix).rmdir, OpMknod: (*posix).mknod, OpUnlink: (*posix).unlink,
	OpLink: (*posix).link, OpLinkFD: (*posix).linkFD, OpSymlink: (*posix).symlink, OpReadlink: (*posix).readlink,
	OpRename: (*posix).rename, OpChmod: (*posix).chmod, OpFchmod: (*posix).fchmod, OpChown: (*posix).chown,
	OpFchown: (*posix).fchown, OpUtimens: (*posix).utimens,
	OpSetxattr: (*posix).setxattr, OpGetxattr: (*posix).getxattr, OpListxattr: (*posix).listxattr, OpRmxattr: (*posix).rmxattr,
	OpReaddir: (*posix).readdir, OpSeekdir: (*posix).seekdir, OpChurn: (*posix).churn,
	OpMassMake: (*posix).massMake, OpMassDrop: (*posix).massDrop,
	OpStatfs: (*posix).statfs, OpUmask: (*posix).umask, OpFlock: (*posix).flock, OpLock: (*posix).lock,
	OpGetflags: (*posix).getflags, OpSync: (*posix).sync,
}

// do runs one Op.
func (p *posix) do(o *Op) (r Result) {
	f := posixOps[o.Kind]
	if f == nil {
		r.Note = fmt.Sprintf("no such operation: %q", o.Kind)
		return r
	}
	if o.Late {
		time.Sleep(3 * clockGrain)
	}
	var before []probed
	if p.probe {
		before = p.look(o)
	}
	err := as(o.As, func() {
		if !p.sabotaged(o, &r) {
			f(p, o, &r)
		}
	})
	if err != nil {
		r.Note = err.Error()
	}
	if p.probe {
		r.Probes = p.compareProbes(o, before, p.look(o))
	}
	return r
}

// clockGrain is how far apart two changes must be for their times to differ on any side: a tick of the kernel, or
// LaneFS's own grain for data.
const clockGrain = 4 * time.Millisecond

// as runs f with the thread's user and group changed. Supplementary groups go.
func as(id int, f func()) error {
	if id == 0 {
		f()
		return nil
	}
	const same = ^uintptr(0)
	set := func(nr, id uintptr) error {
		if _, _, e := unix.RawSyscall(nr, same, id, same); e != 0 {
			return fmt.Errorf("become user %d: %w", id, e)
		}
		return nil
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop groups: %w", e)
	}
	if err := set(unix.SYS_SETRESGID, uintptr(id)); err != nil {
		return err
	}
	if err := set(unix.SYS_SETRESUID, uintptr(id)); err != nil {
		return err
	}
	f()
	if err := set(unix.SYS_SETRESUID, 0); err != nil {
		panic(err) // nothing may run as the wrong user
	}
	if err := set(unix.SYS_SETRESGID, 0); err != nil {
		panic(err)
	}
	return nil
}

// probed is one look at a file.
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

// parent is the directory of a path, without cleaning it: "a/../b" may lead elsewhere than it seems.
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

// statOf leaves out what differs by nature: numbers of inodes and devices, the sizes of directories, where blocks lie.
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

// chosen is a time that somebody set, or zero for one that the run itself made.
func chosen(t unix.Timespec, run time.Time) unix.Timespec {
	d := time.Unix(t.Unix()).Sub(run)
	if d > -runSlack && d < 24*time.Hour {
		return unix.Timespec{}
	}
	return t
}

// runSlack is how long before a run its images may have been made.
const runSlack = time.Hour

func errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(unix.Errno); ok {
		return e
	}
	panic(fmt.Sprintf("not an errno: %v", err))
}

// fd is the descriptor of a slot, one that nobody has when it is closed.
func (p *posix) fd(slot int) int { return p.slots[slot] }

// put fills in the usual outcome of a system call.
func (r *Result) put(n int, err error) {
	r.Errno = errno(err)
	if err == nil {
		r.Ret = int64(n)
	}
}

func (p *posix) open(o *Op, r *Result) {
	p.closeSlot(o.FD)
	fd, err := unix.Open(o.Path, o.Flags|unix.O_CLOEXEC, o.Mode)
	r.put(0, err)
	if err == nil {
		p.slots[o.FD] = fd
	}
}

func (p *posix) closeSlot(slot int) error {
	fd := p.slots[slot]
	p.slots[slot] = -1
	if fd < 0 {
		return unix.EBADF
	}
	return unix.Close(fd)
}

func (p *posix) closeAll() {
	for i := range p.slots {
		p.closeSlot(i)
	}
}

func (p *posix) close(o *Op, r *Result) { r.put(0, p.closeSlot(o.FD)) }

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

// statx asks for the birth time, and asks the file system itself: what the kernel has cached must be the same.
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

func (p *posix) umask(o *Op, r *Result) { r.Ret = int64(unix.Umask(int(o.Mode & 0o777))) }

func (p *posix) getflags(o *Op, r *Result) {
	v, err := unix.IoctlGetInt(p.fd(o.FD), unix.FS_IOC_GETFLAGS)
	// Of the flags of a file only those that somebody chooses: not how it is stored.
	const chosen = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x4000 | 0x10000 | 0x20000 | 0x20000000
	r.put(v&chosen, err)
}

func (p *posix) flock(o *Op, r *Result) { r.put(0, unix.Flock(p.fd(o.FD), o.Flags|unix.LOCK_NB)) }

func (p *posix) lock(o *Op, r *Result) {
	const setLock = 37 // F_OFD_SETLK
	l := unix.Flock_t{Type: int16(o.Flags), Start: o.Off, Len: o.Len}
	r.put(0, unix.FcntlFlock(uintptr(p.fd(o.FD)), setLock, &l))
}

func (p *posix) sync(_ *Op, r *Result) {
	fd, err := unix.Open(".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Syncfs(fd)
		unix.Close(fd)
	}
	r.put(0, err)
}

// join is path.Join for a directory that may be "".
func join(dir, name string) string { return path.Join(dir, name) }
