package diff

import (
	"fmt"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// posix runs Ops by system calls in the working directory. One goroutine uses it, locked to its operating system thread: the
// user is changed for that thread alone.
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

func errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(unix.Errno); ok {
		return e
	}
	panic(fmt.Sprintf("not an errno: %v", err))
}

// fd returns the descriptor of a slot, or an invalid one if the slot is closed.
func (p *posix) fd(slot int) int { return p.slots[slot] }

// put stores the errno and the return value of a system call.
func (r *Result) put(n int, err error) {
	r.Errno = errno(err)
	if err == nil {
		r.Ret = int64(n)
	}
}

// count adds one of many calls: Ret is how many succeeded, Errno that of the first that did not.
func (r *Result) count(err error) {
	if err == nil {
		r.Ret++
	} else if r.Errno == 0 {
		r.Errno = errno(err)
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

func (p *posix) umask(o *Op, r *Result) { r.Ret = int64(unix.Umask(int(o.Mode & 0o777))) }

func (p *posix) getflags(o *Op, r *Result) {
	v, err := unix.IoctlGetInt(p.fd(o.FD), unix.FS_IOC_GETFLAGS)
	// Only the flags that a user can set, not those that say how the file is stored.
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
