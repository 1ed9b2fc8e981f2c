package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/names"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Inode is a live file. There is one per inode number, shared by all holders of a reference.
type Inode volume.Inode

// in is the inode as the rooms below know it.
func (i *Inode) in() *volume.Inode { return (*volume.Inode)(i) }

// face is the inode as this package's users know it.
func face(i *volume.Inode, err error) (*Inode, error) { return (*Inode)(i), err }

// Ino is the inode number.
func (i *Inode) Ino() uint32 { return i.in().Ino() }

// Generation tells apart files that had the same number one after the other.
func (i *Inode) Generation() uint32 { return i.in().Generation() }

// Ref is one more reference.
func (i *Inode) Ref() *Inode { return (*Inode)(i.in().Ref()) }

// Put gives up a reference. The last one of a file without links frees it, and of a file whose truncation failed half-way
// tries that once more, which may take several transactions: Put is not called under a handle or a lock.
func (i *Inode) Put() { i.in().Put() }

// Attr reports the inode's attributes.
func (i *Inode) Attr() Attr { return attrs.Stat(i.in()) }

// Flags are EXT4_*_FL, as Attr has them.
func (i *Inode) Flags() uint32 { return attrs.Flags(i.in()) }

// SetAttr changes attributes, all or none, and reports them as they are then. A change of size is of regular files only.
func (i *Inode) SetAttr(s SetAttr) (Attr, error) { return attrs.Set(i.in(), s) }

// SetFlags sets the flags that users may set to those in flags, EXT4_*_FL, as FS_IOC_SETFLAGS of ioctl(2). The
// caller checks that only the privileged change immutable and append-only.
func (i *Inode) SetFlags(flags uint32) error { return attrs.SetFlags(i.in(), flags) }

// SetFlagsAndProject is SetFlags that also moves the file to a project, as FS_IOC_FSSETXATTR. Volumes without the
// feature have project 0 only.
func (i *Inode) SetFlagsAndProject(flags, projid uint32) error {
	return attrs.SetFlagsAndProject(i.in(), flags, projid)
}

// SetACL sets the access ACL, in the form that Setxattr takes, and the permission bits that go with it; nil removes the ACL.
// Of the mode's other bits it clears those in drop. It is one transaction: neither is there without the other.
func (i *Inode) SetACL(value []byte, perm, drop uint32, may ...May) error {
	return attrs.SetACL(i.in(), value, perm, drop, may...)
}

// Getxattr reads an extended attribute. ACLs have the form that setxattr(2) knows, not the one on disk.
func (i *Inode) Getxattr(name string) ([]byte, error) { return attrs.Getxattr(i.in(), name) }

// Listxattr lists the names of the extended attributes.
func (i *Inode) Listxattr() ([]string, error) { return attrs.Listxattr(i.in()) }

// Setxattr sets an extended attribute. An ACL without entries removes the one that there is.
func (i *Inode) Setxattr(name string, value []byte, flags int, may ...May) error {
	return attrs.Setxattr(i.in(), name, value, flags, may...)
}

// Removexattr removes an extended attribute.
func (i *Inode) Removexattr(name string) error { return attrs.Removexattr(i.in(), name) }

// Read reads at most n bytes from off. It reads less only at the end of the file.
func (i *Inode) Read(off int64, n int, how ...Reading) (*Data, error) {
	return contents.Read(i.in(), off, n, how...)
}

// Write writes p at off and returns how much of it was written: less than len(p) only with an error.
func (i *Inode) Write(off int64, p []byte, may ...May) (int, error) {
	return contents.Write(i.in(), off, p, may...)
}

// Load reads len(c.Bytes) bytes from off to where c says and returns how many they are: fewer only at the end of the file. Whole
// blocks at the start of a payload are read in place. What lies behind the bytes in their last block is undefined then.
func (i *Inode) Load(off int64, c Content, how ...Reading) (int, error) {
	return contents.Load(i.in(), off, c, how...)
}

// Store is Write of c. keepTimes is for bytes from a write-back cache, which sets their times itself by SetAttr, before or after. Bytes of a
// payload that begin at a block are written from where they are, and the payload is the write's until it returns: the rest of
// the last block is overwritten.
func (i *Inode) Store(off int64, c Content, keepTimes bool, may May) (int, error) {
	return contents.Store(i.in(), off, c, keepTimes, may)
}

// Fsync makes the file's bytes and, unless dataOnly says that what is needed to read them is enough, its attributes
// durable. With dataOnly a file that was only written over, or read, waits for no commit: its bytes are on the device,
// which flushes them.
func (i *Inode) Fsync(dataOnly bool) error { return contents.Fsync(i.in(), dataOnly) }

// Fallocate allocates, zeroes or punches the n bytes from off, as fallocate(2) says. Other modes are ErrNotSup: collapsing and
// inserting ranges, too, which Linux's FUSE refuses before it asks.
func (i *Inode) Fallocate(mode uint32, off, n int64, may ...May) error {
	return contents.Fallocate(i.in(), mode, off, n, may...)
}

// Seek finds where data or a hole begins at or after off. Unwritten extents are holes: they hold nothing.
func (i *Inode) Seek(off int64, whence int) (int64, error) { return contents.Seek(i.in(), off, whence) }

// CopyRange copies n bytes from off of i to dstOff of dst, which may be the same file, and returns how many it copied:
// fewer at the end of i.
func (i *Inode) CopyRange(off int64, dst *Inode, dstOff, n int64, may ...May) (int64, error) {
	return contents.CopyRange(i.in(), off, dst.in(), dstOff, n, may...)
}

// ReadInto carries out the transfers, each with an error of its own. Where there is no memory for the edges at once it
// waits for it, with no lock and no other memory held: others that have memory may be waiting for that.
func (i *Inode) ReadInto(ts []Transfer, how ...Reading) { contents.ReadInto(i.in(), ts, how...) }

// WriteAll carries out transfers from memory to the file, each with an error of its own: fewer bytes than asked for only with one. They do
// not overlap, and are carried out in any order. Whole blocks go straight from the memory, and those that are only replaced all at once:
// planned is how many transfers that were.
func (i *Inode) WriteAll(ts []Transfer) (planned int) { return contents.WriteAll(i.in(), ts) }

// Create makes a file of the kind that mode says: regular, fifo, socket, or a device with the given number.
func (i *Inode) Create(name string, mode, uid, gid, major, minor uint32, with ...With) (*Inode, error) {
	return face(names.Create(i.in(), name, mode, uid, gid, major, minor, with...))
}

// Symlink makes a symbolic link. A target of less than 60 bytes lies in the inode itself, a longer one in a block.
func (i *Inode) Symlink(name, target string, uid, gid uint32, with ...With) (*Inode, error) {
	return face(names.Symlink(i.in(), name, target, uid, gid, with...))
}

// Mkdir makes a directory.
func (i *Inode) Mkdir(name string, mode, uid, gid uint32, with ...With) (*Inode, error) {
	return face(names.Mkdir(i.in(), name, mode, uid, gid, with...))
}

// Tmpfile makes a regular file without a name in the directory: an orphan until it is linked.
func (i *Inode) Tmpfile(mode, uid, gid uint32, with ...With) (*Inode, error) {
	return face(names.Tmpfile(i.in(), mode, uid, gid, with...))
}

// Readlink reports the target of a symbolic link.
func (i *Inode) Readlink() (string, error) { return names.Readlink(i.in()) }

// ReadDir calls f with the entries from cookie on, 0 for all, until f returns false: then that entry was not taken. f
// must not call into the volume.
func (i *Inode) ReadDir(cookie uint64, f func(DirEntry) bool, how ...Reading) error {
	return names.ReadDir(i.in(), cookie, f, how...)
}

// Lookup finds name in the directory.
func (i *Inode) Lookup(name string) (*Inode, error) { return face(names.Lookup(i.in(), name)) }

// Link gives target one more name.
func (i *Inode) Link(target *Inode, name string, may ...May) error {
	return names.Link(i.in(), target.in(), name, may...)
}

// Unlink removes the name of a file that is not a directory.
func (i *Inode) Unlink(name string) error { return names.Unlink(i.in(), name) }

// Rmdir removes an empty directory.
func (i *Inode) Rmdir(name string) error { return names.Rmdir(i.in(), name) }

// Rename moves oldName of the directory i to newName of the directory to, replacing what is there unless flags say
// RenameNoReplace, or exchanging the two with RenameExchange.
//
// Locks: renameMu when two directories take part, so that the tree above them stands still; then the directories, an
// ancestor first; then what is moved and what is replaced.
func (i *Inode) Rename(oldName string, to *Inode, newName string, flags uint32, may ...May) error {
	return names.Rename(i.in(), oldName, to.in(), newName, flags, may...)
}

// RenameWhiteout is Rename that leaves a whiteout at oldName, for the layers of an overlay: a character device 0,0, owned
// by uid and gid.
func (i *Inode) RenameWhiteout(oldName string, to *Inode, newName string, flags, uid, gid uint32, may ...May) error {
	return names.RenameWithWhiteout(i.in(), oldName, to.in(), newName, flags, uid, gid, may...)
}
