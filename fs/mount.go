package fs

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/fs/devfuse"
	"github.com/lanefs/lanefs/fs/ext4"
)

// subtype of the mount. The kernel names the file system "fuse.lanefs".
const subtype = "lanefs"

// How long the kernel may cache names and attributes. They do not change without its knowledge, so any time would do. It is finite so
// that a mistake of ours does not last for ever.
const (
	attrTimeout  = 24 * time.Hour
	entryTimeout = 24 * time.Hour
)

const (
	maxRequest    = 1 << 20 // bytes of one READ or WRITE; the kernel's default limit is as large
	maxBackground = 64      // read-ahead, write-back and asynchronous direct requests in flight

	// Bytes of requests in flight. The limit does not delay small requests. It delays large writes: with more bytes in flight than the
	// CPU's caches hold, write-back is half as fast.
	maxInflight = 16 << 20
)

// Server is one mount. The volume may be closed only after Wait has returned.
type Server struct {
	opt        Options
	dir        string
	flags      uintptr // MS_* of the mount
	dev        uint64  // st_dev of the mount's files; 0: not known
	vol        *ext4.FS
	root       *node
	nodes      nodes
	callers    callers
	fuse       *fuse.Server
	rings      rings
	device     atomic.Pointer[devfuse.Transport] // nil: rings bring the mount's requests, or go-fuse's threads do
	payloads   payloads
	drops      atomic.Int32   // requests in pagesGone
	done       chan struct{}  // closed after the last request
	background sync.WaitGroup // work left of requests that have been answered
	errors     errorLog
	times      *latency.Layer

	reservedUID, reservedGID uint32 // see mayOf

	count struct{ reads, readBytes, writes, writtenBytes atomic.Int64 }
}

// Mount serves vol at the directory dir and returns when the mount answers requests. Root mounts by mount(2), other users by fusermount3.
// After an error that wraps ErrServed the volume must not be closed.
func Mount(dir string, vol *ext4.FS, opt Options) (*Server, error) {
	if err := CheckMountPoint(dir); err != nil {
		return nil, err
	}
	flags, rest, err := mountFlags(opt.Mount)
	if err != nil {
		return nil, err
	}
	if opt.ReadOnly || vol.ReadOnly() {
		flags |= unix.MS_RDONLY
	}
	in, err := vol.Root()
	if err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.patience == 0 {
		opt.patience = reclaimPatience
	}
	s := &Server{
		opt:    opt,
		dir:    dir,
		flags:  flags,
		vol:    vol,
		nodes:  newNodes(),
		done:   make(chan struct{}),
		errors: errorLog{log: opt.Log},
		times:  newRequestTimes(),
	}
	st := vol.Statfs()
	s.reservedUID, s.reservedGID = st.ReservedUID, st.ReservedGID
	s.root = &node{srv: s, in: in}
	mountOpt := s.mountOptions(flags, rest)
	raw := measuredFS{newRawFS(s), s.times}
	s.openRings(mountOpt)
	said := func() string { return "" }
	if os.Geteuid() != 0 {
		if said, err = captureStderr(); err != nil {
			s.closeRings()
			in.Put()
			return nil, err
		}
	}
	s.fuse, err = fuse.NewServer(raw, dir, mountOpt)
	if text := said(); err != nil && text != "" {
		err = errors.New(text) // instead of the status that it ended with
	}
	if err != nil {
		s.closeRings()
		in.Put()
		return nil, s.explain(err)
	}
	// The device number is read in the table of mounts, because the mount may not answer a stat.
	if there, err := mountsAt(dir); err == nil && len(there) > 0 && Ours(there[len(there)-1]) {
		s.dev = Number(there[len(there)-1])
	}
	err = s.startRings(raw, mountOpt)
	s.serve(raw, mountOpt)
	if err == nil {
		err = s.fuse.WaitMount()
	}
	if err != nil {
		return nil, fmt.Errorf("mount %q: %w", dir, errors.Join(err, s.Abandon()))
	}
	var there unix.Stat_t
	if s.dev == 0 && unix.Stat(dir, &there) == nil {
		s.dev = there.Dev
	}
	s.tune()
	return s, nil
}

// mountOptions returns the settings of go-fuse. [fuse] describes the capabilities.
func (s *Server) mountOptions(flags uintptr, rest []string) *fuse.MountOptions {
	root := os.Geteuid() == 0
	o := &fuse.MountOptions{
		Name:                     subtype,
		FsName:                   s.opt.FSName,
		AllowOther:               s.opt.AllowOther || root,
		Options:                  append([]string{"default_permissions"}, rest...),
		MaxWrite:                 maxRequest,
		MaxBackground:            maxBackground,
		MaxInflightRequestBytes:  maxInflight,
		EnableSymlinkCaching:     !s.opt.StrictAtime,
		ExplicitDataCacheControl: true,
		EnableAcl:                true,
		Logger:                   log.New(fuseLog{s.opt.Log}, "", 0),
		PanicHandler:             s.panicked,
		// Replies to reads are in memory, so there is nothing to splice.
		DisableSplice: true,
		ExtraCapabilities: fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_SETXATTR_EXT | fuse.CAP_DONT_MASK |
			fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_EXPORT_SUPPORT,
	}
	if s.opt.WriteBack {
		o.ExtraCapabilities |= fuse.CAP_WRITEBACK_CACHE
	}
	if root {
		o.DirectMountStrict = true
		// go-fuse adds nosuid and nodev if there are no flags. MS_MGC_VAL has no effect of its own; it overlaps with MS_STRICTATIME.
		if o.DirectMountFlags = flags; flags == 0 {
			o.DirectMountFlags = unix.MS_MGC_VAL
		}
	} else {
		o.Options = append(o.Options, flagNames(flags)...)
	}
	return o
}

// explain adds to the error of a mount what the user can do about it.
func (s *Server) explain(err error) error {
	var program *exec.Error
	switch {
	case os.Geteuid() != 0 && errors.As(err, &program):
		return fmt.Errorf("mount %q: ordinary users mount by fusermount3, which is not installed: install fuse3", s.dir)
	case os.Geteuid() != 0 && s.opt.AllowOther && strings.Contains(err.Error(), "allow_other"):
		return fmt.Errorf("mount %q: %w (allow_other needs user_allow_other in /etc/fuse.conf)", s.dir, err)
	case os.Geteuid() != 0 && unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) == unix.EACCES:
		return fmt.Errorf("mount %q: %w (this user may not open /dev/fuse; root can let everyone: chmod 666 /dev/fuse)", s.dir, err)
	case os.Geteuid() != 0 && unix.Access(s.dir, unix.W_OK) == unix.EACCES:
		return fmt.Errorf("mount %q: %w (the mount point must belong to the user that mounts, or be writable)", s.dir, err)
	case os.Geteuid() != 0 && strings.Contains(err.Error(), "could not determine username"):
		return fmt.Errorf("mount %q: %w (it looks users up: uid %d needs a line in /etc/passwd)", s.dir, err, os.Geteuid())
	case os.Geteuid() != 0 && strings.Contains(err.Error(), "not permitted") && prctl(unix.PR_GET_NO_NEW_PRIVS, 0) == 1:
		return fmt.Errorf("mount %q: %w (no_new_privs, a container's no-new-privileges as a rule, keeps it from being set-user-ID: mount as root, or without)", s.dir, err)
	case os.Geteuid() != 0 && strings.Contains(err.Error(), "not permitted") && prctl(unix.PR_CAPBSET_READ, unix.CAP_SYS_ADMIN) == 0:
		return fmt.Errorf("mount %q: %w (nobody gets CAP_SYS_ADMIN here: give the container that capability, and /dev/fuse)", s.dir, err)
	case os.Geteuid() == 0 && errors.Is(err, syscall.EPERM) && !mayMount():
		return fmt.Errorf("mount %q: %w (root has no CAP_SYS_ADMIN here: give the container that capability, and /dev/fuse)", s.dir, err)
	case os.Geteuid() == 0 && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSYS)):
		return fmt.Errorf("mount %q: %w (a container's seccomp filter or AppArmor profile forbids it, most likely: let the container use mount)", s.dir, err)
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("mount %q: %w (is /dev/fuse there? try modprobe fuse)", s.dir, err)
	}
	return fmt.Errorf("mount %q: %w", s.dir, err)
}

// prctl is what an option that asks for something returns; -1 if it may not.
func prctl(option int, arg uintptr) int {
	n, err := unix.PrctlRetInt(option, arg, 0, 0, 0)
	if err != nil {
		return -1
	}
	return n
}

// mayMount says whether this process has CAP_SYS_ADMIN, or that cannot be seen.
func mayMount() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	return unix.Capget(&h, &have[0]) != nil || have[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Wait returns when the mount has ended and the last request was answered.
func (s *Server) Wait() { <-s.done }

// Device returns st_dev of the mount's files, 0 if it is not known.
func (s *Server) Device() uint64 { return s.dev }

// invalidateAttr makes the kernel drop the attributes that it caches of n. It takes no kernel lock that a request may hold, so it may be
// called while a request is served.
func (s *Server) invalidateAttr(n *node) fuse.Status {
	return s.fuse.InodeNotify(n.id(), -1, 0)
}

// invalidate makes the kernel write back dirty pages of n and drop all pages. It returns when the dirty pages are written. An error means
// that some pages stayed, if the kernel knows the file.
func (s *Server) invalidate(n *node) fuse.Status {
	return s.fuse.InodeNotify(n.id(), 0, 0)
}
