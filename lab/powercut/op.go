package powercut

import "fmt"

// opKind is what an operation does.
type opKind uint8

const (
	opCreate opKind = iota
	opMkdir
	opSymlink
	opMknod
	opTmpfile
	opLink
	opUnlink
	opRmdir
	opRename
	opExchange
	opWrite
	opCopy
	opTruncate
	opAllocate
	opPunch
	opZero
	opSetxattr
	opRemovexattr
	opChmod
	opChown
	opOpen
	opClose
	opFsync
	opSync
	opTrim
	opKinds
)

var opNames = [opKinds]string{"create", "mkdir", "symlink", "mknod", "tmpfile", "link", "unlink", "rmdir", "rename", "exchange",
	"write", "copy", "truncate", "allocate", "punch", "zero", "setxattr", "removexattr", "chmod", "chown",
	"open", "close", "fsync", "sync", "trim"}

func (k opKind) String() string { return opNames[k] }

// fileOp reports whether the operation is on the contents of one regular file.
func (k opKind) fileOp() bool { return k >= opWrite && k <= opZero }

// op is one operation of a worker. Files and directories are named by the worker's own numbers.
type op struct {
	kind       opKind
	id         int // what it is on, or what it makes
	dir, dir2  int // where names are
	name       string
	name2      string
	off, n     int64
	src        int    // of opCopy
	srcOff     int64  // of opCopy
	value      string // of an xattr, or a link's target
	mode       uint32 // of what is made, or opChmod
	uid, gid   uint32
	flag       bool // keep size; fdatasync; opWrite: n bytes in single blocks, with a block left out after each
	durability int  // set by apply: how many operations are durable once this one has completed
}

func (o *op) String() string {
	switch o.kind {
	case opCreate, opMkdir, opSymlink, opMknod, opTmpfile:
		return fmt.Sprintf("%v %d as %q in %d, mode %o", o.kind, o.id, o.name, o.dir, o.mode)
	case opLink:
		return fmt.Sprintf("link %d as %q in %d", o.id, o.name, o.dir)
	case opUnlink, opRmdir:
		return fmt.Sprintf("%v %q in %d (%d)", o.kind, o.name, o.dir, o.id)
	case opRename, opExchange:
		return fmt.Sprintf("%v %d, %q in %d, to %q in %d", o.kind, o.id, o.name, o.dir, o.name2, o.dir2)
	case opCopy:
		return fmt.Sprintf("copy %d+%d of %d to %d of %d", o.srcOff, o.n, o.src, o.off, o.id)
	case opSetxattr, opRemovexattr:
		return fmt.Sprintf("%v %q of %d, %d bytes", o.kind, o.name, o.id, len(o.value))
	case opChmod:
		return fmt.Sprintf("chmod %d to %o", o.id, o.mode)
	case opChown:
		return fmt.Sprintf("chown %d to %d:%d", o.id, o.uid, o.gid)
	case opOpen, opClose, opFsync:
		return fmt.Sprintf("%v %d %v", o.kind, o.id, o.flag)
	case opSync, opTrim:
		return o.kind.String()
	}
	return fmt.Sprintf("%v %d+%d of %d %v", o.kind, o.off, o.n, o.id, o.flag)
}

// eachWrite calls f for the single writes of an opWrite, up to n bytes: one, or one per block if flag is set.
func (o *op) eachWrite(block, n int64, f func(*op)) {
	if o.kind != opWrite || !o.flag {
		f(o)
		return
	}
	for i := int64(0); i < n/block; i++ {
		one := *o
		one.off, one.n, one.flag = o.off+2*i*block, block, false
		f(&one)
	}
}

// result is the result of an operation. A worker's operations follow from the seed and the results.
type result struct {
	Start, End int   // positions of the recording before and after it; End -1: it had not ended
	N          int64 // bytes written, or the size after a failed allocation
	NoSpace    bool
}
