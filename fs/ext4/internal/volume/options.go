package volume

import (
	"log/slog"
	"time"
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
	Panic          func(error)  // ends the program, for ErrorsPanic; nil: panic
	Log            *slog.Logger // nil: discard
	// Progress hears how far long work has come: that of Open, and of Settle and Close. It must not wait. nil: nobody listens.
	Progress func(Progress)
}

// Progress is how far long work has come.
type Progress struct {
	Work        Work
	Done, Total uint64 // of what Work counts
}

// Work is long work, by what is counted: "3 of 17 " before it is a sentence.
type Work string

const (
	WorkReplay  Work = "blocks of the journal are recovered"
	WorkOrphans Work = "deletions and truncations of the last mount are finished"
	WorkHome    Work = "blocks of metadata are written to their places"
)

// Tell tells who listens.
func (v *FS) Tell(work Work, done, total int) {
	if v.Opt.Progress != nil {
		v.Opt.Progress(Progress{work, uint64(done), uint64(total)})
	}
}

// ErrorMode says what follows when corruption is met, after it was recorded in the superblock.
type ErrorMode uint8

const (
	// ErrorsOfVolume is ErrorsPanic where the superblock asks for it, else ErrorsReadOnly. The superblock's "continue"
	// does not count: mkfs.ext4 sets it by default, and more writes to a damaged volume do more damage.
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
