// Package ext4 reads and writes ext4 volumes on a blockdev.Device. It knows the on-disk format, allocation, directories
// and extended attributes; it knows nothing of FUSE, NVMe or GPUs, and returns Go errors, never errno.
//
// The nouns: an FS is one mounted volume. An Inode is a live file of it, counted: FS.Inode, Lookup, Create and the like
// return a reference that the caller drops with Put; the last Put of a file without links frees it. Data is file content in
// memory that the controller can reach. Offsets and lengths are bytes, block numbers are disk.Block, logical blocks of a file
// are uint32.
//
// The work is done in packages below internal, each of which imports only those after it: recovery brings a volume into use,
// names has the directories, attrs what is said of a file, contents its bytes, volume the superblock, the inode table and the
// operations. FS and Inode here pass each call on.
//
// Every change of metadata happens under a jbd2.Handle. File data is written to its blocks before the handle that makes
// them reachable ends, so a transaction never commits a pointer to bytes that were not written (ordered mode).
//
// The format is described in Linux's Documentation/filesystems/ext4/ ([layout] in comments).
package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/names"
	"github.com/lanefs/lanefs/fs/ext4/internal/recovery"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Errors that callers tell apart. Everything else is an I/O error.
var (
	ErrNotExist    = volume.ErrNotExist
	ErrExist       = volume.ErrExist
	ErrNotDir      = volume.ErrNotDir
	ErrIsDir       = volume.ErrIsDir
	ErrNotEmpty    = volume.ErrNotEmpty
	ErrInvalid     = volume.ErrInvalid
	ErrNameTooLong = volume.ErrNameTooLong
	ErrNoSpace     = volume.ErrNoSpace
	ErrTooManyLink = volume.ErrTooManyLink
	ErrTooBig      = volume.ErrTooBig
	ErrReadOnly    = volume.ErrReadOnly
	ErrCorrupt     = volume.ErrCorrupt
	ErrNoAttr      = volume.ErrNoAttr
	ErrNotSup      = volume.ErrNotSup
	ErrPerm        = volume.ErrPerm // immutable, append-only
	ErrRange       = volume.ErrRange
	ErrClusters    = volume.ErrClusters // free space of a volume with bigalloc
	ErrCrossDevice = volume.ErrCrossDevice
	ErrNoData      = volume.ErrNoData // Seek
	ErrStale       = volume.ErrStale  // ByNumber: it leads to no file that has a name
)

// SmallBlocksError is an error of Open.
type SmallBlocksError = volume.SmallBlocksError

// What Open is told.
type (
	Options   = volume.Options
	Progress  = volume.Progress  // how far long work has come
	ErrorMode = volume.ErrorMode // what follows when corruption is met
	AtimeMode = volume.AtimeMode // when reading a file changes its access time
)

// Values of Options.Errors and Options.Atime.
const (
	ErrorsOfVolume = volume.ErrorsOfVolume // ErrorsPanic where the superblock asks for it, else ErrorsReadOnly
	ErrorsContinue = volume.ErrorsContinue // what met it fails, nothing else
	ErrorsReadOnly = volume.ErrorsReadOnly // no more changes
	ErrorsPanic    = volume.ErrorsPanic    // Options.Panic

	AtimeRelative = volume.AtimeRelative // when it is not after the last change, or a day old
	AtimeNever    = volume.AtimeNever
	AtimeAlways   = volume.AtimeAlways
)

// What is said of a volume.
type (
	Statfs         = volume.Statfs         // sizes, and what is free
	Stats          = volume.Stats          // bytes moved since the volume was mounted
	Feature        = volume.Feature        // a feature of ext4 volumes
	Support        = volume.Support        // what becomes of a volume that has it
	Inspection     = recovery.Inspection   // what can be said of a volume without changing it
	JournalState   = recovery.JournalState // its journal
	ErrorsRecorded = recovery.ErrorsRecorded
)

// Values of Support.
const (
	ReadWrite = volume.ReadWrite
	ReadOnly  = volume.ReadOnly
	Refused   = volume.Refused
)

// MaxLabel is the longest label in bytes.
const MaxLabel = volume.MaxLabel

// AllFeatures lists the features that have a name.
func AllFeatures() []Feature { return volume.AllFeatures() }

// What files are asked and told.
type (
	Attr     = attrs.Attr      // what stat reports
	SetAttr  = attrs.Change    // a change of attributes
	DirEntry = names.DirEntry  // one name of a directory
	Data     = contents.Data   // file content in a pinned buffer
	Target   = contents.Target // memory that a transfer reads into or writes from
	// AllPutter is a Target that takes many pieces faster together.
	AllPutter = contents.AllPutter
	Transfer  = contents.Transfer
	Content   = contents.Content  // bytes of a file in memory, which may be a payload's
	Payload   = contents.Payload  // pinned memory for one request at a time
	Payloads  = contents.Payloads // gives them out

	With    = volume.With    // what an operation that makes a file may be told: a May, or Xattrs
	Reading = volume.Reading // what a read leaves undone, because of the descriptor that it is done for
	May     = volume.May     // what an operation may do beyond others
	Xattrs  = volume.Xattrs  // attributes that a file has from its first moment
	Xattr   = volume.Xattr
)

// UseReserved lets an operation take the blocks that are reserved for the superuser.
const UseReserved = volume.UseReserved

// KeepAtime has a read leave the access time as it is.
const KeepAtime = volume.KeepAtime

// Flags of Rename, as in renameat2(2).
const (
	RenameNoReplace = names.RenameNoReplace
	RenameExchange  = names.RenameExchange
	RenameWhiteout  = names.RenameWhiteout // see Inode.RenameWhiteout
)

// Flags of Setxattr, as in setxattr(2).
const (
	XattrCreate  = attrs.XattrCreate
	XattrReplace = attrs.XattrReplace
)

// Modes of Fallocate, as in fallocate(2).
const (
	FallocKeepSize  = contents.FallocKeepSize
	FallocPunchHole = contents.FallocPunchHole
	FallocZeroRange = contents.FallocZeroRange
)

// Values of whence for Seek, as in lseek(2).
const (
	SeekData = contents.SeekData
	SeekHole = contents.SeekHole
)
