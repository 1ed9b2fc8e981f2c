package claim

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// bottom is what bytes lie in at last: a regular file, or a block device that stands on nothing.
type bottom struct {
	Block bool
	Dev   uint64 // device number: of the block device, or of the file's file system
	Ino   uint64 // the file's
}

func (b bottom) String() string {
	if b.Block {
		return "block device " + number(b.Dev)
	}
	return fmt.Sprintf("file %d on %s", b.Ino, number(b.Dev))
}

// number is a device number as sysfs writes it.
func number(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }

// toEnd is the end of an extent that has none: the file may grow.
const toEnd = math.MaxInt64

// extent is the bytes [Off, End) of a bottom.
type extent struct {
	On       bottom
	Off, End int64
	path     string // where the kernel says that the file is; it may be another mount namespace's
}

func (e extent) overlaps(o extent) bool { return e.On == o.On && e.Off < o.End && o.Off < e.End }

func overlap(a, b []extent) bool {
	for _, x := range a {
		for _, y := range b {
			if x.overlaps(y) {
				return true
			}
		}
	}
	return false
}

// within maps [off, end) of a device that is a window of another, beginning at its byte start and size bytes long.
func within(off, end, start, size int64) (int64, int64) {
	if size < toEnd && end > size {
		end = size
	}
	if end > toEnd-start {
		end = toEnd - start
	}
	return start + min(off, end), start + end
}
