package fs

import (
	"log/slog"
	"time"
)

// Options of Mount. The zero value serves the user that mounts, without the write-back cache.
type Options struct {
	FSName     string // what df and mount show as the device
	AllowOther bool   // other users may use the mount; root's mounts always have it
	ReadOnly   bool
	MinixDF    bool     // statfs counts the format's own blocks as well
	WriteBack  bool     // the kernel keeps dirty pages; it then owns size and times of files that are open for writing
	Mount      []string // further mount options, such as "noexec" or "nosuid"
	// CopyReads copies replies to reads out of the pinned buffers. It is needed if the buffers are in a device's BAR, from which the kernel
	// cannot copy.
	CopyReads bool
	// IOUring says whether requests come by io_uring.
	IOUring IOUring
	// Keepers is uring.Options' of requests on rings.
	Keepers int
	// SchedIdle has the threads that serve requests run with SCHED_IDLE while they are busy: uring.Options', devfuse.Options'.
	SchedIdle bool
	// Crowded is called for each request on rings that finds as many others under way as there are CPUs. It must be quick. nil: none.
	Crowded func()
	// StrictAtime makes every read bypass the kernel's page cache, so that the volume sees it and updates the access time. It excludes
	// WriteBack, with which the kernel owns the size.
	StrictAtime bool
	// Changed is called for every change of bytes [off, end) of a file: after the change, before the reply to the request. It must not
	// block, and must not use the mount. nil: none.
	Changed func(ino uint32, off, end int64)
	// Share is the path of the socket of fs/share, the value of the attribute wire.ShareAttr. Empty: the mount has no share.
	Share string
	Log   *slog.Logger // nil: discard

	patience time.Duration // of reclaim; 0: reclaimPatience
}
