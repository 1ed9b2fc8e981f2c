package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// What a POSIX front end needs to know of the format: inode flags, ACLs, names of attributes, the root's number and the range of
// time stamps.

// RootIno is the inode number of the root directory of every volume. Files of lower numbers have no names.
const RootIno = disk.InoRoot

// ErrAborted says that the journal takes no more changes, because writing it has failed.
var ErrAborted = jbd2.ErrAborted

// Inode flags in Attr.Flags and Inode.SetFlags. FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of ioctl(2) have the same bits (FS_*_FL in
// linux/fs.h).
const (
	FlagSync        = disk.FlSync        // changes are synchronous: chattr +S
	FlagImmutable   = disk.FlImmutable   // chattr +i
	FlagAppend      = disk.FlAppend      // append-only: chattr +a
	FlagNoDump      = disk.FlNodump      // chattr +d
	FlagNoAtime     = disk.FlNoatime     // chattr +A
	FlagDirSync     = disk.FlDirsync     // changes to the directory are synchronous: chattr +D
	FlagTopDir      = disk.FlTopdir      // chattr +T
	FlagDAX         = disk.FlDAX         // chattr +x
	FlagProjInherit = disk.FlProjinherit // new files get the directory's project: chattr +P

	FlagsVisible = disk.FlUserVisible // those that FS_IOC_GETFLAGS shows (FS_FL_USER_VISIBLE)
)

// Names of extended attributes that have a meaning of their own (xattr(7), acl(5)).
const (
	XattrACLAccess  = "system.posix_acl_access"
	XattrACLDefault = "system.posix_acl_default"
	XattrTrusted    = "trusted." // prefix of the names that only root sees
)

// ACL is a POSIX access control list (acl(5)). Its Xattr method encodes it as the value of XattrACLAccess or XattrACLDefault.
type ACL = xattr.ACL

// ACLEntry is one entry of an ACL.
type ACLEntry = xattr.ACLEntry

// Tags of ACL entries (ACL_* in linux/posix_acl.h).
const (
	ACLUserObj  = xattr.TagUserObj
	ACLUser     = xattr.TagUser
	ACLGroupObj = xattr.TagGroupObj
	ACLGroup    = xattr.TagGroup
	ACLMask     = xattr.TagMask
	ACLOther    = xattr.TagOther
)

// ParseACL decodes and checks the value that setxattr(2) has for an ACL. It returns nil for a list without entries, which means that
// there is no ACL.
func ParseACL(value []byte) (ACL, error) { return xattr.ParseACL(value) }

// ClampTime returns the time stamp that an inode with room for i_xtime_extra stores and that is next to t, as the kernel does.
func ClampTime(t time.Time) time.Time { return disk.TimestampOf(t).Time() }
