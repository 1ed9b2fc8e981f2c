package diff

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// The second part of namesGen: extended attributes, ACLs, directories, and what can be done with an open file.

func (n *namesGen) attrName() string {
	switch n.rng.IntN(20) {
	case 0:
		return pick(n.gen, "", "user", "user.", "nonsense.a", "system.nonsense", "trusted.", strings.Repeat("n", 255), strings.Repeat("n", 256))
	case 1:
		return "user." + strings.Repeat("l", pick(n.gen, 249, 250, 251))
	case 2:
		return pick(n.gen, "system.posix_acl_access", "system.posix_acl_default")
	}
	return pick(n.gen, "user.", "user.", "trusted.", "security.") + pick(n.gen, "a", "b", "c", "some.longer.name")
}

func (n *namesGen) setxattr() Op {
	o := Op{Kind: OpSetxattr, Path: n.any(), Name: n.attrName(), Flags: pick(n.gen, 0, 0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE, unix.XATTR_CREATE|unix.XATTR_REPLACE)}
	if n.one(3) {
		o.Flags |= unix.AT_SYMLINK_NOFOLLOW
	}
	// Far below the size at which a volume with inodes of 256 bytes is full, or far above: see accepted for what lies between.
	size := pick(n.gen, 0, 1, 2, 3, 4, 5, 20, 50, 100, 200, 400, 70_000)
	if strings.HasPrefix(o.Name, "trusted.") {
		size = pick(n.gen, 0, 10, 5000, 65536, 65537)
	}
	o.Value = make([]byte, size)
	Fill(o.Value, n.seed(), 0)
	return o
}

func (n *namesGen) getxattr() Op {
	return Op{Kind: OpGetxattr, Path: n.any(), Name: n.attrName(), Len: pick[int64](n.gen, 0, 1, 1000, 65536), Flags: pick(n.gen, 0, unix.AT_SYMLINK_NOFOLLOW)}
}

func (n *namesGen) listxattr() Op {
	return Op{Kind: OpListxattr, Path: n.any(), Len: pick[int64](n.gen, 0, 5, 65536, 65536)}
}

func (n *namesGen) rmxattr() Op {
	return Op{Kind: OpRmxattr, Path: n.any(), Name: n.attrName(), Flags: pick(n.gen, 0, unix.AT_SYMLINK_NOFOLLOW)}
}

// Tags of an entry of an ACL as setxattr(2) takes it (linux/posix_acl_xattr.h).
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// setACL sets one of the two ACLs: minimal, with named users and groups, or invalid.
func (n *namesGen) setACL() Op {
	o := Op{Kind: OpSetxattr, Path: n.any(), Name: pick(n.gen, "system.posix_acl_access", "system.posix_acl_default")}
	if o.Name == "system.posix_acl_default" && !n.one(4) {
		o.Path = n.dir()
	}
	var b bytes.Buffer
	le := binary.LittleEndian
	entry := func(tag uint16, id uint32) {
		b.Write(le.AppendUint32(le.AppendUint16(le.AppendUint16(nil, tag), uint16(n.rng.IntN(8))), id))
	}
	const none = ^uint32(0)
	b.Write(le.AppendUint32(nil, uint32(pick(n.gen, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1))))
	entry(aclUserObj, none)
	named := n.rng.IntN(4)
	if named&1 != 0 {
		entry(aclUser, alice)
		if n.one(2) {
			entry(aclUser, nobody)
		}
	}
	entry(aclGroupObj, none)
	if named&2 != 0 {
		entry(aclGroup, pick(n.gen, uint32(alice), nobody, 70000))
	}
	if named != 0 != n.one(12) {
		entry(aclMask, none)
	}
	if !n.one(12) {
		entry(aclOther, none)
	}
	o.Value = b.Bytes()
	if n.one(20) {
		o.Value = o.Value[:n.rng.IntN(len(o.Value))]
	}
	return o
}

func (n *namesGen) readdir() Op {
	return Op{Kind: OpReaddir, Path: pick(n.gen, ".", n.old("d"), n.any()), Len: pick[int64](n.gen, 300, 1000, 4096, 65536)}
}

func (n *namesGen) seekdir() Op { return Op{Kind: OpSeekdir, Path: n.dir()} }

func (n *namesGen) churn() Op {
	return Op{Kind: OpChurn, Path: n.dir(), Len: n.upTo(60), Seed: n.seed()}
}

// massMake fills a directory; massDrop empties it again, or leaves every third name.
func (n *namesGen) massMake() Op {
	o := Op{Kind: OpMassMake, Path: n.dir(), Len: pick[int64](n.gen, 10, 50, 200, 200, 1000), Off: n.upTo(200), Seed: n.seed()}
	n.mass = append(n.mass, o)
	return o
}

func (n *namesGen) massDrop() Op {
	if len(n.mass) == 0 {
		return n.massMake()
	}
	o := n.mass[n.rng.IntN(len(n.mass))]
	o.Kind, o.Off2 = OpMassDrop, pick(n.gen, int64(0), 0, 3)
	return o
}

func (n *namesGen) stat() Op {
	return Op{Kind: OpStat, Path: n.any(), Flags: pick(n.gen, 0, unix.AT_SYMLINK_NOFOLLOW)}
}

func (n *namesGen) statx() Op { return Op{Kind: OpStatx, Path: n.any()} }

func (n *namesGen) access() Op {
	return Op{Kind: OpAccess, Path: n.any(), Mode: uint32(n.rng.IntN(8))}
}

func (n *namesGen) statfs() Op { return Op{Kind: OpStatfs, Path: n.any()} }
func (n *namesGen) umask() Op {
	return Op{Kind: OpUmask, Mode: pick(n.gen, uint32(0), 0o022, 0o077, 0o027)}
}
func (n *namesGen) getflags() Op { return Op{Kind: OpGetflags, FD: n.slot()} }

func (n *namesGen) truncate() Op {
	return Op{Kind: OpTruncate, Path: n.any(), Len: pick[int64](n.gen, 0, 1, 5000, 100_000, -1, 1<<62)}
}

func (n *namesGen) flock() Op {
	return Op{Kind: OpFlock, FD: n.slot(), Flags: pick(n.gen, unix.LOCK_SH, unix.LOCK_EX, unix.LOCK_UN)}
}

func (n *namesGen) lock() Op {
	return Op{Kind: OpLock, FD: n.slot(), Flags: pick(n.gen, unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK), Off: n.upTo(10), Len: n.upTo(10)}
}

// slotIO reads, writes or changes an open file that may have lost its name.
func (n *namesGen) slotIO() Op {
	s := n.slot()
	switch n.rng.IntN(8) {
	case 0:
		return Op{Kind: OpFstat, FD: s}
	case 1:
		return Op{Kind: OpFsync, FD: s}
	case 2:
		return Op{Kind: OpPread, FD: s, Off: n.upTo(5000) &^ 4095, Len: 8192}
	case 3:
		return Op{Kind: OpFtruncate, FD: s, Len: n.upTo(20_000)}
	case 4:
		return Op{Kind: OpFallocate, FD: s, Off: n.upTo(20_000), Len: 1 + n.upTo(20_000), Flags: pick(n.gen, 0, keepSize, punch|keepSize)}
	case 5:
		return Op{Kind: OpLseek, FD: s, Off: n.upTo(100), Flags: pick(n.gen, unix.SEEK_SET, unix.SEEK_END)}
	}
	return Op{Kind: OpPwrite, FD: s, Off: n.upTo(20_000) &^ 4095, Len: 4096 * (1 + n.upTo(3)), Seed: n.seed()}
}
