package diff

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Users that act, beside root.
const (
	alice  = 1000
	nobody = 65534
)

// namesGen makes Ops of the names profile. It estimates which names exist, so that most Ops find a file. The estimate may be
// wrong, and some Ops miss on purpose.
type namesGen struct {
	*gen
	choices
	names []known
	mass  []Op
	fresh int
}

type known struct {
	path string
	kind byte // 'd', 'f', 'l'
}

func newNamesGen(g *gen) *namesGen {
	n := &namesGen{gen: g}
	n.choices = newChoices([]choice{
		{12, n.open}, {4, n.close}, {8, n.mkdir}, {4, n.rmdir}, {4, n.mknod}, {6, n.unlink}, {6, n.link}, {2, n.linkFD}, {5, n.symlink},
		{3, n.readlink}, {14, n.rename}, {6, n.chmod}, {2, n.fchmod}, {5, n.chown}, {2, n.fchown}, {5, n.utimens}, {9, n.setxattr},
		{4, n.getxattr}, {3, n.listxattr}, {4, n.rmxattr}, {6, n.setACL}, {4, n.readdir}, {2, n.seekdir}, {2, n.churn}, {2, n.massMake},
		{2, n.massDrop}, {2, n.stat}, {4, n.statx}, {4, n.access}, {1, n.statfs}, {1, n.umask}, {3, n.truncate}, {1, n.flock},
		{1, n.lock}, {1, n.getflags}, {8, n.slotIO}, {1, func() Op { return Op{Kind: OpSync} }},
	})
	return n
}

func (n *namesGen) next() Op {
	o := n.choices.next(n.gen)
	if n.one(4) {
		o.As = pick(n.gen, alice, nobody)
	}
	o.Late = n.one(40)
	return o
}

func (n *namesGen) open() Op {
	o := Op{Kind: OpOpen, FD: n.slot(), Mode: n.mode()}
	// Opening a fifo would wait for a process at its other end.
	o.Flags = pick(n.gen, unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR) | unix.O_NONBLOCK
	if n.one(12) {
		o.Path, o.Flags = n.dir(), unix.O_TMPFILE|pick(n.gen, unix.O_RDWR, unix.O_WRONLY, unix.O_RDONLY)
		if n.one(5) {
			o.Flags |= unix.O_EXCL
		}
		return o
	}
	o.Path = n.any()
	if n.one(2) {
		o.Flags |= unix.O_CREAT
		o.Path = n.dest()
		n.learn(o.Path, 'f')
	}
	for _, x := range []struct{ one, flag int }{{6, unix.O_EXCL}, {6, unix.O_TRUNC}, {8, unix.O_APPEND}, {12, unix.O_DIRECTORY}, {8, unix.O_NOFOLLOW},
		{20, unix.O_PATH}, {12, unix.O_DIRECT}, {20, unix.O_NOATIME}, {20, unix.O_SYNC}} {
		if n.one(x.one) {
			o.Flags |= x.flag
		}
	}
	if o.Flags&(unix.O_EXCL|unix.O_CREAT) == unix.O_EXCL {
		o.Flags &^= unix.O_EXCL // undefined without O_CREAT, and on devices something else
	}
	return o
}

func (n *namesGen) close() Op { return Op{Kind: OpClose, FD: n.slot()} }

func (n *namesGen) mkdir() Op {
	p := n.dest()
	n.learn(p, 'd')
	return Op{Kind: OpMkdir, Path: p, Mode: pick(n.gen, 0o777, 0o755, n.mode())}
}

func (n *namesGen) rmdir() Op {
	p := n.old("d")
	if n.one(4) {
		p = n.any()
	}
	n.forget(p)
	return Op{Kind: OpRmdir, Path: p}
}

func (n *namesGen) mknod() Op {
	o := Op{Kind: OpMknod, Path: n.dest(), Mode: n.mode() | pick(n.gen, uint32(unix.S_IFREG), 0, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFDIR)}
	if f := o.Mode & unix.S_IFMT; f == unix.S_IFCHR || f == unix.S_IFBLK {
		// Major numbers 240 to 254 are for local use: opening such a device does no harm.
		o.Off = int64(pick(n.gen, unix.Mkdev(240, 1), unix.Mkdev(250, 70000), unix.Mkdev(241, 300)))
	}
	n.learn(o.Path, 'f')
	return o
}

func (n *namesGen) unlink() Op {
	p := n.old("fl")
	if n.one(4) {
		p = n.any()
	}
	n.forget(p)
	return Op{Kind: OpUnlink, Path: p}
}

func (n *namesGen) link() Op {
	o := Op{Kind: OpLink, Path: n.any(), Path2: n.dest(), Flags: pick(n.gen, 0, 0, unix.AT_SYMLINK_FOLLOW)}
	n.learn(o.Path2, 'f')
	return o
}

func (n *namesGen) linkFD() Op {
	o := Op{Kind: OpLinkFD, FD: n.slot(), Path: n.dest()}
	n.learn(o.Path, 'f')
	return o
}

func (n *namesGen) symlink() Op {
	o := Op{Kind: OpSymlink, Path: n.dest(), Path2: n.any()}
	switch n.rng.IntN(4) {
	case 0:
		o.Path2 = strings.Repeat("t", pick(n.gen, 1, 58, 59, 60, 61, 255, 1000, 1022, 1023, 1024, 2047, 2048, 3000, 4094, 4095, 4096))
	case 1:
		o.Path2 = "../" + o.Path2
	}
	n.learn(o.Path, 'l')
	return o
}

func (n *namesGen) readlink() Op {
	return Op{Kind: OpReadlink, Path: pick(n.gen, n.old("l"), n.any())}
}

func (n *namesGen) rename() Op {
	o := Op{Kind: OpRename, Path: n.any(), Path2: n.dest()}
	switch n.rng.IntN(8) {
	case 0:
		o.Path2 = n.any()
	case 1:
		o.Path2 = o.Path + "/" + n.component() // into itself
	case 2:
		o.Path, o.Path2 = n.old("d"), n.old("d")
	case 3:
		o.Path2 = o.Path
	}
	switch n.rng.IntN(8) {
	case 0:
		o.Flags = unix.RENAME_NOREPLACE
	case 1, 2:
		o.Flags, o.Path2 = unix.RENAME_EXCHANGE, n.any()
	case 3:
		if n.one(6) {
			o.Flags = unix.RENAME_EXCHANGE | unix.RENAME_NOREPLACE
		}
	}
	if o.Flags == 0 {
		for _, k := range slices.Clone(n.names) {
			if k.path == o.Path || strings.HasPrefix(k.path, o.Path+"/") {
				n.learn(o.Path2+k.path[len(o.Path):], k.kind)
			}
		}
		n.forget(o.Path)
	}
	return o
}

func (n *namesGen) chmod() Op  { return Op{Kind: OpChmod, Path: n.any(), Mode: n.mode()} }
func (n *namesGen) fchmod() Op { return Op{Kind: OpFchmod, FD: n.slot(), Mode: n.mode()} }

func (n *namesGen) owner() int { return pick(n.gen, -1, 0, alice, nobody, 70000, 1<<31) }

func (n *namesGen) chown() Op {
	return Op{Kind: OpChown, Path: n.any(), UID: n.owner(), GID: n.owner(), Flags: pick(n.gen, 0, unix.AT_SYMLINK_NOFOLLOW)}
}

func (n *namesGen) fchown() Op {
	return Op{Kind: OpFchown, FD: n.slot(), UID: n.owner(), GID: n.owner()}
}

// times are values for utimensat(2): around 1970, 2038 and the ends of ext4's range, which is from 1901 to 2446.
func (n *namesGen) time() unix.Timespec {
	switch n.rng.IntN(8) {
	case 0:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case 1:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	case 2:
		return unix.Timespec{Sec: pick[int64](n.gen, -1<<31, -1<<31-1, -1<<40, 1<<31, 1<<31-1, 1<<32, 1<<34-1, 1<<34, 15032385535, 15032385536, 1<<40), Nsec: n.upTo(999_999_999)}
	case 3:
		return unix.Timespec{Sec: -n.upTo(1 << 31), Nsec: n.upTo(999_999_999)}
	}
	return unix.Timespec{Sec: n.upTo(1_600_000_000), Nsec: pick[int64](n.gen, 0, 1, 999_999_999, n.upTo(999_999_999))}
}

func (n *namesGen) utimens() Op {
	return Op{Kind: OpUtimens, Path: n.any(), Times: [2]unix.Timespec{n.time(), n.time()}, Flags: pick(n.gen, 0, unix.AT_SYMLINK_NOFOLLOW)}
}
