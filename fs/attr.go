package fs

import (
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

const (
	sIFMT  = syscall.S_IFMT
	sIFDIR = syscall.S_IFDIR
	sISUID = syscall.S_ISUID
	sISGID = syscall.S_ISGID
)

// rdev packs a device number as [fuse] carries it: the kernel's new_encode_dev, 12 bits of major and 20 of minor.
func rdev(major, minor uint32) uint32 {
	return minor&0xff | major&0xfff<<8 | minor&^0xff<<12
}

// splitRdev undoes rdev.
func splitRdev(dev uint32) (major, minor uint32) {
	return dev >> 8 & 0xfff, dev&0xff | dev>>12&0xfff00
}

// fillAttr writes a into a reply. Times before 1970 are negative seconds, as two's complement.
func (s *Server) fillAttr(a *ext4.Attr, out *fuse.Attr) {
	*out = fuse.Attr{
		Ino:       uint64(a.Ino),
		Size:      uint64(a.Size),
		Blocks:    uint64(a.Blocks),
		Atime:     uint64(a.Atime.Unix()),
		Mtime:     uint64(a.Mtime.Unix()),
		Ctime:     uint64(a.Ctime.Unix()),
		Atimensec: uint32(a.Atime.Nanosecond()),
		Mtimensec: uint32(a.Mtime.Nanosecond()),
		Ctimensec: uint32(a.Ctime.Nanosecond()),
		Mode:      a.Mode,
		Nlink:     a.Links,
		Owner:     fuse.Owner{Uid: a.UID, Gid: a.GID},
		Rdev:      rdev(a.Major, a.Minor),
		Blksize:   uint32(s.vol.BlockSize()),
	}
}

// fillEntry writes the entry part of a reply. a holds n's attributes as read just now.
func (n *node) fillEntry(a *ext4.Attr, out *fuse.EntryOut) {
	out.NodeId = n.id()
	if n != n.srv.root { // the kernel wants the root's generation to be 0
		out.Generation = uint64(a.Generation)
	}
	n.srv.fillAttr(a, &out.Attr)
	out.SetEntryTimeout(entryTimeout)
	out.SetAttrTimeout(n.attrTimeout())
}

// showEntry tells the attributes of a file that was there before in a reply with an entry.
func (n *node) showEntry(out *fuse.EntryOut) {
	n.show()
	a := n.in.Attr()
	n.fillEntry(&a, out)
}

// Getattr answers stat.
func (n *node) Getattr(out *fuse.AttrOut) syscall.Errno {
	n.show()
	a := n.in.Attr()
	n.srv.fillAttr(&a, &out.Attr)
	out.SetTimeout(n.attrTimeout())
	return 0
}

// Statx answers statx when the caller asked for the birth time; the kernel sends Getattr for everything else.
func (n *node) Statx(out *fuse.StatxOut) syscall.Errno {
	n.show()
	a := n.in.Attr()
	stamp := func(t time.Time) fuse.SxTime {
		return fuse.SxTime{Sec: uint64(t.Unix()), Nsec: uint32(t.Nanosecond())}
	}
	out.Statx = fuse.Statx{
		Mask:           unix.STATX_BASIC_STATS | unix.STATX_BTIME,
		Blksize:        uint32(n.srv.vol.BlockSize()),
		Attributes:     statxAttributes(a.Flags),
		AttributesMask: statxAttributes(math.MaxUint32),
		Nlink:          a.Links,
		Uid:            a.UID,
		Gid:            a.GID,
		Mode:           uint16(a.Mode),
		Ino:            uint64(a.Ino),
		Size:           uint64(a.Size),
		Blocks:         uint64(a.Blocks),
		Atime:          stamp(a.Atime),
		Btime:          stamp(a.Crtime),
		Ctime:          stamp(a.Ctime),
		Mtime:          stamp(a.Mtime),
		RdevMajor:      a.Major,
		RdevMinor:      a.Minor,
	}
	if a.Crtime.IsZero() { // a small inode has no room for it
		out.Mask &^= unix.STATX_BTIME
		out.Btime = fuse.SxTime{}
	}
	out.SetTimeout(n.attrTimeout())
	return 0
}

// statxAttributes are the inode flags that statx(2) shows, at the same bits.
func statxAttributes(flags uint32) uint64 {
	return uint64(flags) & (unix.STATX_ATTR_COMPRESSED | unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND |
		unix.STATX_ATTR_NODUMP)
}

// clampTime is what the volume can store of t.
func clampTime(t time.Time) *time.Time {
	t = ext4.ClampTime(t)
	return &t
}

// killPriv clears the set-ID bits of a file that c is about to change, if c has no right to keep them.
func (n *node) killPriv(c *fuse.Caller) error {
	a := n.in.Attr()
	mode := withoutPriv(a.Mode, a.GID, c) & 07777
	if mode == a.Mode&07777 {
		return nil
	}
	if _, err := n.in.SetAttr(ext4.SetAttr{Mode: &mode}); err != nil {
		return err
	}
	// The kernel does not read the mode again after a write unless it is notified.
	n.srv.invalidateAttr(n)
	return nil
}

// Setattr answers chmod, chown, truncate and utimens.
func (n *node) Setattr(c *fuse.Caller, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	now := time.Time{} // what ext4 takes for "now"
	var set ext4.SetAttr
	if uid, ok := in.GetUID(); ok {
		set.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		set.GID = &gid
	}
	if size, ok := in.GetSize(); ok {
		if size > math.MaxInt64 {
			return syscall.EFBIG
		}
		v := int64(size)
		set.Size = &v
		defer n.changed(min(v, n.in.Attr().Size), math.MaxInt64)
		if _, ok := in.GetMTime(); !ok && n.srv.opt.WriteBack {
			// The kernel owns the times and sends them when they change, except for a truncate to the same size.
			a := n.in.Attr()
			set.Mtime, set.Ctime = &a.Mtime, &a.Ctime
		}
	}
	if t, ok := in.GetATime(); ok {
		set.Atime = clampTime(t)
		if in.Valid&fuse.FATTR_ATIME_NOW != 0 {
			set.Atime = &now
		}
	}
	if t, ok := in.GetMTime(); ok {
		set.Mtime = clampTime(t)
		if in.Valid&fuse.FATTR_MTIME_NOW != 0 {
			set.Mtime = &now
		}
	}
	if t, ok := in.GetCTime(); ok {
		set.Ctime = clampTime(t)
	}
	if mode, ok := in.GetMode(); ok {
		set.Mode = &mode
		if err := n.chmodACL(mode, n.srv.may(c)); err != nil {
			return n.fail("chmod", err)
		}
	} else if empty := in.Valid&^fuse.FATTR_CTIME == 0; empty || in.Valid&fuse.FATTR_KILL_SUIDGID != 0 {
		a := n.in.Attr()
		if mode := withoutPriv(a.Mode, a.GID, c); mode != a.Mode {
			if empty && c.Uid != 0 && c.Uid != a.UID {
				return n.chownOfOther(&a, in.Valid, out)
			}
			mode &= 07777
			set.Mode = &mode
		}
	}

	a, err := n.in.SetAttr(set)
	if err != nil {
		return n.fail("setattr", err)
	}
	if set.Size != nil {
		if err := n.syncFile(); err != nil {
			return n.fail("truncate", err)
		}
	}
	n.srv.fillAttr(&a, &out.Attr)
	out.SetTimeout(n.attrTimeout())
	return 0
}

// chownOfOther answers a SETATTR that sets nothing, for a file with set-ID bits that the caller does not own. There are two cases.
// A chown(2) that keeps user and group would clear the bits, and is refused. Before a write of the caller the kernel clears the bits:
// then the file is open for writing and no FATTR_CTIME is set. Nothing is done in that case, since the WRITE carries the flag to clear
// them.
func (n *node) chownOfOther(a *ext4.Attr, valid uint32, out *fuse.AttrOut) syscall.Errno {
	if valid&fuse.FATTR_CTIME != 0 || n.writers.Load() == 0 {
		return syscall.EPERM
	}
	n.srv.fillAttr(a, &out.Attr)
	out.SetTimeout(n.attrTimeout())
	return 0
}

// Statfs answers statfs and df.
func (n *node) Statfs(out *fuse.StatfsOut) syscall.Errno {
	st := n.srv.vol.Statfs()
	*out = fuse.StatfsOut{
		Blocks:  st.Blocks,
		Bfree:   st.BlocksFree,
		Bavail:  st.BlocksAvail,
		Files:   st.Inodes,
		Ffree:   st.InodesFree,
		Bsize:   uint32(st.BlockSize),
		Frsize:  uint32(st.BlockSize),
		NameLen: uint32(st.MaxName),
	}
	if n.srv.opt.MinixDF {
		out.Blocks += st.Overhead
	}
	return 0
}
