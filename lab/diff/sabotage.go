package diff

import "golang.org/x/sys/unix"

// sabotages make a worker's file system wrong in one way each, so that the tests can see that a run finds it.
var sabotages = map[string]func(p *posix, o *Op, r *Result) bool{
	// Every seventh write reports success, and changes the times but no byte. That the times stayed would be seen only now and then: two changes
	// within a tick of the clock look like one, and a short sequence would not fail again.
	"lost write": func(p *posix, o *Op, r *Result) bool {
		if o.Kind != OpPwrite || o.Seed%7 != 0 {
			return false
		}
		var st unix.Stat_t
		flags, err := unix.FcntlInt(uintptr(p.fd(o.FD)), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY || unix.Fstat(p.fd(o.FD), &st) != nil || st.Size < o.Off+o.Len {
			return false
		}
		now := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}
		if unix.UtimesNanoAt(p.fd(o.FD), "", now, unix.AT_EMPTY_PATH) != nil {
			return false
		}
		r.Ret = o.Len
		return true
	},
	// Removing an attribute that is not there succeeds.
	"rmxattr": func(p *posix, o *Op, r *Result) bool {
		if o.Kind == OpRmxattr {
			p.rmxattr(o, r)
			if r.Errno == unix.ENODATA {
				r.Errno = 0
			}
			return true
		}
		return false
	},
	// A rename of a file does not change the directory's time.
	"rename time": func(p *posix, o *Op, r *Result) bool {
		if o.Kind != OpRename {
			return false
		}
		var st unix.Stat_t
		dir := parent(o.Path)
		err := unix.Stat(dir, &st)
		p.rename(o, r)
		if err == nil && r.Errno == 0 {
			_ = unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{st.Atim, st.Mtim}, 0)
		}
		return true
	},
	// Modes lose the sticky bit.
	"sticky": func(p *posix, o *Op, r *Result) bool {
		if o.Kind == OpChmod && o.Mode&unix.S_ISVTX != 0 {
			o.Mode &^= unix.S_ISVTX
		}
		return false
	},
}

// sabotaged runs the worker's sabotage. True means that o was run.
func (p *posix) sabotaged(o *Op, r *Result) bool {
	f := sabotages[p.sabotage]
	return f != nil && f(p, o, r)
}
