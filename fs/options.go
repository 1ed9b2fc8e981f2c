package fs

import (
	"log/slog"
	"time"
)

// Options of Mount. The zero value serves whoever mounted, with the kernel writing through.
type Options struct {
	FSName     string // what df and mount show as the device
	AllowOther bool   // let other users in; root's mounts always do
	ReadOnly   bool
	MinixDF    bool     // statfs counts the blocks of the format itself, too
	WriteBack  bool     // let the kernel keep dirty pages; it then owns size and times of files being written
	Mount      []string // further mount options, such as "noexec" or "nosuid"
	// CopyReads copies answers out of the buffers they were read into: the kernel takes none from a device's BAR.
	CopyReads bool
	// StrictAtime brings every read here, past the kernel's caches: the volume then knows when a file was read. Not with
	// WriteBack, which leaves a file's size to the kernel.
	StrictAtime bool
	// Changed hears of every change of a file's bytes [off, end), after it and before whoever made it does. It must not
	// block, nor use the mount.
	Changed func(ino uint32, off, end int64)
	// Share is the path of the socket by which programs ask for files as device memory; the attribute wire.ShareAttr tells it them. Empty:
	// there is none.
	Share string
	Log   *slog.Logger // nil: discard

	patience time.Duration // of reclaim; 0: reclaimPatience
}
