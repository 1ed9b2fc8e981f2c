package fs

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// subtype is the mount's: the kernel calls the file system "fuse.lanefs".
const subtype = "lanefs"

// The kernel may keep what it was told: nothing changes without its knowledge. The time is finite so that a mistake of
// ours does not last for ever.
const (
	attrTimeout  = 24 * time.Hour
	entryTimeout = 24 * time.Hour
)

const (
	maxRequest    = 1 << 20 // bytes of one READ or WRITE; the kernel's default limit is as large
	maxBackground = 64      // read-ahead, write-back and asynchronous direct requests in flight

	// Bytes of requests in flight. Small requests are not held up by it. Large writes are: with more of them in memory
	// than the CPU's caches hold, write-back is half as fast.
	maxInflight = 16 << 20
)

// Server is one mount. Wait returns when it is gone; only then may the volume be closed.
type Server struct {
	opt    Options
	dir    string
	flags  uintptr // MS_* of the mount
	dev    uint64  // of the mount, as stat has it; 0 if it did not say
	vol    *ext4.FS
	root   *node
	nodes  nodes
	fuse   *fuse.Server
	late   sync.WaitGroup // what is still to be done for requests that were answered
	drops  atomic.Int32   // direct writes in dropPages
	done   chan struct{}  // closed after the last request
	errors errorLog

	reservedUID, reservedGID uint32 // see mayOf

	count struct{ reads, readBytes, writes, writtenBytes atomic.Int64 }
}

// Mount serves vol at the directory dir and returns when the mount answers. Root mounts by itself, anyone else through
// fusermount3.
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
	}
	st := vol.Statfs()
	s.reservedUID, s.reservedGID = st.ReservedUID, st.ReservedGID
	s.root = &node{srv: s, in: in}
	nodeOpt := s.nodeOptions(flags, rest)
	raw := &rawFS{RawFileSystem: gofs.NewNodeFS(s.root, nodeOpt), srv: s}
	s.fuse, err = fuse.NewServer(raw, dir, &nodeOpt.MountOptions)
	if err != nil {
		in.Put()
		return nil, s.explain(err)
	}
	go s.fuse.Serve()
	// Its number is the kernel's to say: the mount may not answer.
	if there, err := mountsAt(dir); err == nil && len(there) > 0 && Ours(there[len(there)-1]) {
		s.dev = Number(there[len(there)-1])
	}
	if err := s.fuse.WaitMount(); err != nil {
		return nil, fmt.Errorf("mount %q: %w", dir, errors.Join(err, s.Abandon()))
	}
	var there unix.Stat_t
	if s.dev == 0 && unix.Stat(dir, &there) == nil {
		s.dev = there.Dev
	}
	s.tune()
	return s, nil
}

// nodeOptions are the settings of go-fuse. See [fuse] for the capabilities.
func (s *Server) nodeOptions(flags uintptr, rest []string) *gofs.Options {
	entry := entryTimeout
	root := os.Geteuid() == 0
	o := &gofs.Options{
		EntryTimeout:    &entry,
		NegativeTimeout: &entry,
		NullPermissions: true,
		RootStableAttr:  &gofs.StableAttr{Ino: ext4.RootIno}, // the kernel wants the root's generation to be 0
		ExternalNodeID:  true,
		MountOptions: fuse.MountOptions{
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
			// Reads are answered from memory, so there is nothing to splice.
			DisableSplice: true,
			ExtraCapabilities: fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_SETXATTR_EXT | fuse.CAP_DONT_MASK |
				fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_EXPORT_SUPPORT,
		},
	}
	if s.opt.WriteBack {
		o.ExtraCapabilities |= fuse.CAP_WRITEBACK_CACHE
	}
	if root {
		o.DirectMountStrict = true
		// Without a flag go-fuse would add nosuid and nodev. The magic number says nothing, and overlaps with MS_STRICTATIME.
		if o.DirectMountFlags = flags; flags == 0 {
			o.DirectMountFlags = unix.MS_MGC_VAL
		}
	} else {
		o.Options = append(o.Options, flagNames(flags)...)
	}
	return o
}

// explain adds what to do about a mount that was refused.
func (s *Server) explain(err error) error {
	switch {
	case os.Geteuid() != 0 && s.opt.AllowOther:
		return fmt.Errorf("mount %q: %w (allow_other needs user_allow_other in /etc/fuse.conf)", s.dir, err)
	case os.Geteuid() != 0 && unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) == unix.EACCES:
		return fmt.Errorf("mount %q: %w (this user may not open /dev/fuse; root can let everyone: chmod 666 /dev/fuse)", s.dir, err)
	case os.Geteuid() != 0 && unix.Access(s.dir, unix.W_OK) == unix.EACCES:
		return fmt.Errorf("mount %q: %w (the mount point must belong to who mounts, or be writable)", s.dir, err)
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("mount %q: %w (is /dev/fuse there? try modprobe fuse)", s.dir, err)
	}
	return fmt.Errorf("mount %q: %w", s.dir, err)
}

// Wait returns when the mount is gone and the last request was answered.
func (s *Server) Wait() { <-s.done }

// Device is the device number of the mount's files, as stat has it; 0 if the mount did not say.
func (s *Server) Device() uint64 { return s.dev }

// invalidateAttr makes the kernel ask again for the attributes of n. It takes no lock of the kernel that a request might
// hold, so it may be called from one.
func (s *Server) invalidateAttr(n *node) {
	s.fuse.InodeNotify(n.id(), -1, 0)
}

// invalidate makes the kernel hand over dirty pages of n and forget the others; false means that some stayed. The kernel
// writes the dirty ones while this waits.
func (s *Server) invalidate(n *node) bool {
	return s.fuse.InodeNotify(n.id(), 0, 0).Ok()
}
