package fs

import (
	"bytes"
	"encoding/binary"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Requests of ioctl(2). The kernel sends to a FUSE server only those whose number encodes how many bytes go in and out, and answers
// FICLONE, FIEMAP, FIFREEZE and the like by itself. Before it sends a request that changes flags it has checked the caller: only the owner
// may, and immutable and append-only need CAP_LINUX_IMMUTABLE. Requests for flags come for regular files and directories only, on a file
// that the kernel has opened for them. x/sys/unix does not define all of the numbers.
const (
	iocGetVersion   = 0x80087601 // FS_IOC_GETVERSION: _IOR('v', 1, long)
	iocGetVersion32 = 0x80047601
	iocGetVersionE4 = 0x80086603 // EXT4_IOC_GETVERSION: _IOR('f', 3, long)
	iocFSGetXattr   = 0x801c581f // FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr)
	iocFSSetXattr   = 0x401c5820 // FS_IOC_FSSETXATTR: _IOW('X', 32, struct fsxattr)
	iocTrim         = 0xc0185879 // FITRIM: _IOWR('X', 121, struct fstrim_range)
	iocGetLabel     = 0x81009431 // FS_IOC_GETFSLABEL: _IOR(0x94, 49, char[256])
	iocSetLabel     = 0x41009432 // FS_IOC_SETFSLABEL: _IOW(0x94, 50, char[256])
)

// Ioctl gets and sets flags, project, generation and label, and trims the volume.
func (n *node) Ioctl(c *fuse.Caller, cmd uint32, in, out []byte) (int32, syscall.Errno) {
	switch cmd {
	case unix.FS_IOC_GETFLAGS:
		return 0, put32(out, n.userFlags())
	case unix.FS_IOC_SETFLAGS:
		defer n.srv.invalidateAttr(n) // the change time is new
		return 0, n.setFlags(in)
	case iocGetVersion, iocGetVersion32, iocGetVersionE4:
		return 0, put32(out, n.in.Generation())
	case iocFSGetXattr:
		return 0, n.getFsxattr(out)
	case iocFSSetXattr:
		defer n.srv.invalidateAttr(n)
		return 0, n.setFsxattr(in)
	case iocTrim:
		return 0, n.trim(c, in, out)
	case iocGetLabel:
		clear(out)
		copy(out, n.srv.vol.Label())
		return 0, 0
	case iocSetLabel:
		return 0, n.setLabel(c, in)
	}
	return 0, syscall.ENOTTY
}

func put32(out []byte, v uint32) syscall.Errno {
	if len(out) < 4 {
		return syscall.EINVAL
	}
	clear(out)
	binary.NativeEndian.PutUint32(out, v)
	return 0
}

// mayAdminister reports whether the caller is root, in the place of CAP_SYS_ADMIN, which no request carries.
func mayAdminister(c *fuse.Caller) bool {
	return c.Uid == 0
}

// sizeTrim is the size of struct fstrim_range: start, len, minlen, all in bytes.
const sizeTrim = 24

// trim is FITRIM: it discards free blocks and returns the number of bytes in len.
func (n *node) trim(c *fuse.Caller, in, out []byte) syscall.Errno {
	switch {
	case !mayAdminister(c):
		return syscall.EPERM
	case len(in) < sizeTrim || len(out) < sizeTrim:
		return syscall.EINVAL
	}
	e := binary.NativeEndian
	trimmed, err := n.srv.vol.Trim(e.Uint64(in), e.Uint64(in[8:]), e.Uint64(in[16:]))
	if err != nil {
		return n.fail("trim", err)
	}
	copy(out, in[:sizeTrim])
	e.PutUint64(out[8:], trimmed)
	return 0
}

func (n *node) setLabel(c *fuse.Caller, in []byte) syscall.Errno {
	if !mayAdminister(c) {
		return syscall.EPERM
	}
	label, _, _ := bytes.Cut(in, []byte{0})
	return n.fail("set label", n.srv.vol.SetLabel(string(label)))
}

// userFlags returns the flags that FS_IOC_GETFLAGS shows.
func (n *node) userFlags() uint32 {
	a := n.in.Attr()
	fl := a.Flags & ext4.FlagsVisible
	if a.Mode&sIFMT == syscall.S_IFREG {
		fl &^= ext4.FlagProjInherit
	}
	return fl
}

func (n *node) setFlags(in []byte) syscall.Errno {
	if len(in) < 4 {
		return syscall.EINVAL
	}
	fl := binary.NativeEndian.Uint32(in)
	n.beforeFlags(fl)
	return n.fail("set flags", n.in.SetFlags(fl))
}

// beforeFlags has the kernel write back dirty pages of a file that is about to become immutable or append-only, which would be refused afterwards. The kernel keeps
// other writes away meanwhile (inode_lock in vfs_fileattr_set); what a program stores in a memory map from here on is as if it came after the change.
func (n *node) beforeFlags(fl uint32) {
	if fl&^n.in.Attr().Flags&(ext4.FlagImmutable|ext4.FlagAppend) != 0 && n.writers.Load() > 0 {
		n.srv.invalidate(n) // fails where it need not succeed: a page that stays is dirty again
	}
}

// xflags pairs inode flags with the flags of struct fsxattr (FS_XFLAG_* in linux/fs.h).
var xflags = []struct{ fl, xflag uint32 }{
	{ext4.FlagSync, 0x20},
	{ext4.FlagImmutable, 0x8},
	{ext4.FlagAppend, 0x10},
	{ext4.FlagNoDump, 0x80},
	{ext4.FlagNoAtime, 0x40},
	{ext4.FlagDAX, 0x8000},
	{ext4.FlagProjInherit, 0x200},
}

// sizeFsxattr is the size of struct fsxattr: xflags, extsize, nextents, projid, cowextsize, 8 bytes of padding.
const sizeFsxattr = 28

func (n *node) getFsxattr(out []byte) syscall.Errno {
	if len(out) < sizeFsxattr {
		return syscall.EINVAL
	}
	clear(out)
	fl := n.userFlags()
	var x uint32
	for _, f := range xflags {
		if fl&f.fl != 0 {
			x |= f.xflag
		}
	}
	binary.NativeEndian.PutUint32(out, x)
	binary.NativeEndian.PutUint32(out[12:], n.in.Attr().ProjID)
	return 0
}

// setFsxattr sets flags and project. Flags that struct fsxattr does not have stay as they are.
func (n *node) setFsxattr(in []byte) syscall.Errno {
	if len(in) < sizeFsxattr {
		return syscall.EINVAL
	}
	x, projid := binary.NativeEndian.Uint32(in), binary.NativeEndian.Uint32(in[12:])
	if projid == math.MaxUint32 {
		return syscall.EINVAL // not a project ID
	}
	fl := n.userFlags()
	for _, f := range xflags {
		fl &^= f.fl
		if x&f.xflag != 0 {
			fl |= f.fl
		}
	}
	n.beforeFlags(fl)
	return n.fail("set attributes", n.in.SetFlagsAndProject(fl, projid))
}
