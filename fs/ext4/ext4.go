// Package ext4 reads and writes ext4 volumes on a blockdev.Device. It knows the on-disk format, allocation, directories
// and extended attributes; it knows nothing of FUSE, NVMe or GPUs, and returns Go errors, never errno.
//
// The nouns: an FS is one mounted volume. An Inode is a live file of it, counted: FS.Inode, Lookup, Create and the like
// return a reference that the caller drops with Put; the last Put of a file without links frees it. A Buffer holds file
// bytes in memory that the controller can reach. Offsets and lengths are bytes, block numbers are jbd2.Block, logical
// blocks of a file are uint32.
//
// Every change of metadata happens under a jbd2.Handle. File data is written to its blocks before the handle that makes
// them reachable ends, so a transaction never commits a pointer to bytes that were not written (ordered mode).
//
// The format is described in Linux's Documentation/filesystems/ext4/ ([layout] in comments).
package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/dir"
)

// Errors that callers tell apart. Everything else is an I/O error.
var (
	ErrNotExist    = dir.ErrNotExist
	ErrExist       = dir.ErrExist
	ErrNotDir      = errors.New("not a directory")
	ErrIsDir       = errors.New("is a directory")
	ErrNotEmpty    = errors.New("directory not empty")
	ErrInvalid     = errors.New("invalid argument")
	ErrNameTooLong = errors.New("file name too long")
	ErrNoSpace     = alloc.ErrNoSpace
	ErrTooManyLink = errors.New("too many links")
	ErrTooBig      = errors.New("file too large")
	ErrReadOnly    = errors.New("volume is read-only")
	ErrCorrupt     = errors.New("structure needs cleaning")
	ErrNoAttr      = errors.New("no such attribute")
	ErrNotSup      = errors.New("operation not supported")
	ErrPerm        = errors.New("operation not permitted") // immutable, append-only
	ErrRange       = errors.New("name or value too long")
	ErrClusters    = alloc.ErrReadOnly // free space of a volume with bigalloc
	ErrCrossDevice = errors.New("not of the directory's project")
	ErrNoData      = errors.New("no data past this offset") // Seek
	ErrStale       = errors.New("stale file handle")        // ByNumber: it leads to no file that has a name
)

// Options of Open. The zero value mounts read-write.
type Options struct {
	ReadOnly       bool
	NoRecovery     bool          // read-only look that does not replay the journal
	CommitInterval time.Duration // 0: 5 s
	Discard        bool          // discard freed blocks after the commit that frees them
	CacheSize      int64         // bytes of clean metadata kept, 0: 256 MiB
	Atime          AtimeMode
	NoDirAtime     bool // reading a directory never changes its access time
	Errors         ErrorMode
	Panic          func(error) // ends the program, for ErrorsPanic; nil: panic
	Logf           func(format string, args ...any)
}

// ErrorMode says what follows when corruption is met, after it was recorded in the superblock.
type ErrorMode uint8

const (
	// ErrorsOfVolume is ErrorsPanic where the superblock asks for it, else ErrorsReadOnly. The superblock's "continue"
	// does not count: mkfs.ext4 puts it there unasked, and what goes on writing to a damaged volume damages more.
	ErrorsOfVolume ErrorMode = iota
	ErrorsContinue           // what met it fails, nothing else
	ErrorsReadOnly           // no more changes
	ErrorsPanic              // Options.Panic
)

// AtimeMode says when reading a file changes its access time, as in mount(8).
type AtimeMode uint8

const (
	AtimeRelative AtimeMode = iota // when it is not after the last change, or a day old
	AtimeNever
	AtimeAlways
)

// Attr is what stat reports.
type Attr struct {
	Ino                         uint32
	Generation                  uint32
	Mode                        uint32 // S_IFMT and permission bits, as in struct stat
	Links                       uint32
	UID, GID                    uint32
	Major, Minor                uint32 // of a device node
	Size                        int64
	Blocks                      int64 // of 512 bytes
	Atime, Mtime, Ctime, Crtime time.Time
	Flags                       uint32 // EXT4_*_FL, as on disk
	ProjID                      uint32
}

// SetAttr is a change of attributes; nil fields stay. Ctime is set to now unless given. A time that is the zero
// time.Time means now.
type SetAttr struct {
	Mode                *uint32 // permission bits only
	UID, GID            *uint32
	Size                *int64
	Atime, Mtime, Ctime *time.Time
}

// DirEntry is one name of a directory.
type DirEntry struct {
	Name   string
	Ino    uint32
	Type   uint8  // DT_*, 0 when the volume does not record it
	Cookie uint64 // where reading continues after this entry
}

// Statfs is what statfs reports. Sizes are in blocks of BlockSize bytes.
type Statfs struct {
	BlockSize                       int
	Blocks, BlocksFree, BlocksAvail uint64
	Overhead                        uint64 // blocks of the format itself, which Blocks does not count
	Inodes, InodesFree              uint64
	MaxName                         int
	UUID                            [16]byte
	ReservedUID, ReservedGID        uint32 // who may UseReserved beside root; 0 is nobody
}

// Stats counts the bytes that the volume has moved through its device since it was mounted.
type Stats struct {
	DataRead, DataWritten         int64 // file contents, whole blocks
	MetadataRead, MetadataWritten int64 // the superblock included
	JournalWritten                int64
	Commits                       int64
}

// Rename flags, as in renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4 // see Inode.RenameWhiteout
)

// Fallocate modes, as in fallocate(2).
const (
	FallocKeepSize      = 0x01
	FallocPunchHole     = 0x02
	FallocCollapseRange = 0x08
	FallocZeroRange     = 0x10
	FallocInsertRange   = 0x20
)
