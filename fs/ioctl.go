package fs

import (
	"context"
	"encoding/binary"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

var _ = (gofs.NodeIoctler)((*node)(nil))

// Requests of ioctl(2) on any file (linux/fs.h) that lsattr and the like use. x/sys/unix does not have them all.
const (
	iocGetVersion   = 0x80087601 // FS_IOC_GETVERSION: _IOR('v', 1, long)
	iocGetVersion32 = 0x80047601
	iocFSGetXattr   = 0x801c581f // FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr)
)

// flUserVisible is what FS_IOC_GETFLAGS shows of the ext4 inode flags (EXT4_FL_USER_VISIBLE).
const flUserVisible = 0x705BDFFF

// Ioctl answers what can be asked of an inode; nothing can be changed this way.
func (n *node) Ioctl(_ context.Context, _ gofs.FileHandle, cmd uint32, _ uint64, _, out []byte) (int32, syscall.Errno) {
	a := n.in.Attr()
	switch cmd {
	case unix.FS_IOC_GETFLAGS:
		return 0, put32(out, a.Flags&flUserVisible)
	case iocGetVersion, iocGetVersion32:
		return 0, put32(out, a.Generation)
	case iocFSGetXattr:
		return 0, putFsxattr(out, a.Flags, a.ProjID)
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

// xflags pairs ext4 inode flags with the flags of struct fsxattr (FS_XFLAG_*).
var xflags = []struct{ fl, xflag uint32 }{
	{0x00000008, 0x20},  // SYNC
	{flImmutable, 0x8},  // IMMUTABLE
	{flAppend, 0x10},    // APPEND
	{0x00000040, 0x80},  // NODUMP
	{0x00000080, 0x40},  // NOATIME
	{0x20000000, 0x200}, // PROJINHERIT
}

// sizeFsxattr is the size of struct fsxattr: xflags, extsize, nextents, projid, cowextsize, 8 bytes of padding.
const sizeFsxattr = 28

func putFsxattr(out []byte, flags, projid uint32) syscall.Errno {
	if len(out) < sizeFsxattr {
		return syscall.EINVAL
	}
	clear(out)
	var x uint32
	for _, f := range xflags {
		if flags&f.fl != 0 {
			x |= f.xflag
		}
	}
	binary.NativeEndian.PutUint32(out, x)
	binary.NativeEndian.PutUint32(out[12:], projid)
	return 0
}
