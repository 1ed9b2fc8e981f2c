package diff

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind says what an Op does. The functions in posixOps document its arguments.
type Kind string

// The kinds of Op.
const (
	OpOpen      Kind = "open"
	OpClose     Kind = "close"
	OpRead      Kind = "read"
	OpWrite     Kind = "write"
	OpPread     Kind = "pread"
	OpPwrite    Kind = "pwrite"
	OpPwritev   Kind = "pwritev"
	OpMmapRead  Kind = "mmapread"
	OpMmapWrite Kind = "mmapwrite"
	OpLseek     Kind = "lseek"
	OpSeekMap   Kind = "seekmap"
	OpFtruncate Kind = "ftruncate"
	OpTruncate  Kind = "truncate"
	OpFallocate Kind = "fallocate"
	OpCopyRange Kind = "copy_file_range"
	OpSendfile  Kind = "sendfile"
	OpFsync     Kind = "fsync"
	OpFdatasync Kind = "fdatasync"
	OpDrop      Kind = "drop"
	OpFstat     Kind = "fstat"
	OpStat      Kind = "stat"
	OpStatx     Kind = "statx"
	OpAccess    Kind = "access"
	OpMkdir     Kind = "mkdir"
	OpRmdir     Kind = "rmdir"
	OpMknod     Kind = "mknod"
	OpUnlink    Kind = "unlink"
	OpLink      Kind = "link"
	OpLinkFD    Kind = "linkfd"
	OpSymlink   Kind = "symlink"
	OpReadlink  Kind = "readlink"
	OpRename    Kind = "rename"
	OpChmod     Kind = "chmod"
	OpFchmod    Kind = "fchmod"
	OpChown     Kind = "chown"
	OpFchown    Kind = "fchown"
	OpUtimens   Kind = "utimens"
	OpSetxattr  Kind = "setxattr"
	OpGetxattr  Kind = "getxattr"
	OpListxattr Kind = "listxattr"
	OpRmxattr   Kind = "removexattr"
	OpReaddir   Kind = "readdir"
	OpSeekdir   Kind = "seekdir"
	OpChurn     Kind = "churn"
	OpMassMake  Kind = "massmake"
	OpMassDrop  Kind = "massdrop"
	OpStatfs    Kind = "statfs"
	OpUmask     Kind = "umask"
	OpFlock     Kind = "flock"
	OpLock      Kind = "ofdlock"
	OpGetflags  Kind = "getflags"
	OpSync      Kind = "syncfs"
	OpRemount   Kind = "remount" // the whole volume; the run does it, not a worker
)

// Slots is how many files a worker can have open.
const Slots = 8

// Op is one step of a sequence. Members that a Kind does not use are zero.
type Op struct {
	Kind        Kind
	Path, Path2 string // relative to the worker's root; Path2 is the new name, or a symbolic link's target
	Name        string // of an extended attribute
	FD, FD2     int    // slots
	Off, Off2   int64
	Len         int64
	Flags       int
	Mode        uint32
	UID, GID    int // for chown; -1 leaves it
	As          int // user and group ID that the call is made with; 0 is root
	Value       []byte
	Seed        uint32           // of the bytes written: see Fill
	Times       [2]unix.Timespec // access, modification; UTIME_NOW and UTIME_OMIT in Nsec
	Late        bool             // wait first, so that every clock tells this Op's time from that of the Op before
}

// String prints an Op. It leaves out fields that are zero.
func (o Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(", o.Kind)
	sep := ""
	add := func(show bool, format string, args ...any) {
		if show {
			b.WriteString(sep)
			fmt.Fprintf(&b, format, args...)
			sep = ", "
		}
	}
	if usesFD[o.Kind] {
		add(true, "#%d", o.FD)
	}
	add(o.Path != "" || usesPath[o.Kind], "%s", clip(o.Path))
	add(o.Path2 != "", "%s", clip(o.Path2))
	add(o.Kind == OpCopyRange || o.Kind == OpSendfile, "to #%d", o.FD2)
	add(o.Name != "", "%s", clip(o.Name))
	add(o.Off != 0, "off=%d", o.Off)
	add(o.Off2 != 0, "off2=%d", o.Off2)
	add(o.Len != 0, "len=%d", o.Len)
	add(o.Kind == OpOpen, "%s", openFlags(o.Flags))
	add(o.Flags != 0 && o.Kind != OpOpen, "flags=%#x", o.Flags)
	add(o.Mode != 0, "mode=%#o", o.Mode)
	add(o.UID != 0 || o.GID != 0 || o.Kind == OpChown || o.Kind == OpFchown, "owner=%d:%d", o.UID, o.GID)
	add(len(o.Value) > 0, "value=%d bytes", len(o.Value))
	add(o.Kind == OpUtimens, "times=%v", o.Times)
	add(o.Seed != 0, "seed=%d", o.Seed)
	b.WriteString(")")
	if o.As != 0 {
		fmt.Fprintf(&b, " as %d", o.As)
	}
	if o.Late {
		b.WriteString(" late")
	}
	return b.String()
}

func clip(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%.40q... (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}

func kinds(ks ...Kind) map[Kind]bool {
	m := map[Kind]bool{}
	for _, k := range ks {
		m[k] = true
	}
	return m
}

var (
	usesFD = kinds(OpOpen, OpClose, OpRead, OpWrite, OpPread, OpPwrite, OpPwritev, OpMmapRead, OpMmapWrite, OpLseek, OpSeekMap,
		OpFtruncate, OpFallocate, OpCopyRange, OpSendfile, OpFsync, OpFdatasync, OpDrop, OpFstat, OpLinkFD, OpFchmod, OpFchown,
		OpFlock, OpLock, OpGetflags)
	usesPath = kinds(OpOpen, OpTruncate, OpStat, OpStatx, OpAccess, OpMkdir, OpRmdir, OpMknod, OpUnlink, OpLink, OpLinkFD,
		OpSymlink, OpReadlink, OpRename, OpChmod, OpChown, OpUtimens, OpSetxattr, OpGetxattr, OpListxattr, OpRmxattr,
		OpReaddir, OpSeekdir, OpChurn, OpMassMake, OpMassDrop, OpStatfs)
	usesPath2 = kinds(OpLink, OpRename)
)

var openFlagNames = []struct {
	flag int
	name string
}{
	{unix.O_TMPFILE, "TMPFILE"}, {unix.O_CREAT, "CREAT"}, {unix.O_EXCL, "EXCL"}, {unix.O_TRUNC, "TRUNC"}, {unix.O_APPEND, "APPEND"},
	{unix.O_DIRECTORY, "DIRECTORY"}, {unix.O_NOFOLLOW, "NOFOLLOW"}, {unix.O_PATH, "PATH"}, {unix.O_DIRECT, "DIRECT"},
	{unix.O_SYNC, "SYNC"}, {unix.O_DSYNC, "DSYNC"}, {unix.O_NOATIME, "NOATIME"}, {unix.O_NONBLOCK, "NONBLOCK"},
}

func openFlags(f int) string {
	s := []string{[]string{"RDONLY", "WRONLY", "RDWR", "ACCMODE"}[f&unix.O_ACCMODE]}
	f &^= unix.O_ACCMODE
	for _, n := range openFlagNames {
		if f&n.flag == n.flag {
			s = append(s, n.name)
			f &^= n.flag
		}
	}
	if f != 0 {
		s = append(s, fmt.Sprintf("%#x", f))
	}
	return strings.Join(s, "|")
}

// Fill writes to p the bytes that a seed has at offset off of a file. None is zero, so they cannot be mistaken for bytes that
// were never written.
func Fill(p []byte, seed uint32, off int64) {
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range p {
		v := (x ^ uint64(off+int64(i))) * 0xbf58476d1ce4e5b9
		p[i] = byte(v>>56)%255 + 1
	}
}
