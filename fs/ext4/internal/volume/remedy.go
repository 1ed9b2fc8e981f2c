package volume

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// e2fsck is for damage. Where a write was refused, or memory was short, the volume is as a power cut would leave it, with its journal to recover it. e2fsck
// would find as little room as LaneFS did, and then it empties the journal without having replayed it: what was synchronized is lost. On a device that fails it may make
// damage of what it cannot read or write. So what an error advises goes by its kind, and this is the one place for that.

// Remedy says what to do about an error that keeps a volume from being mounted; empty if nothing is known.
func Remedy(err error) string {
	switch {
	case IsCorrupt(err):
		return "run e2fsck on it"
	case errors.Is(err, blockdev.ErrNoSpace):
		return "make room where it is stored, or mount it with -o ro; do not run e2fsck before there is room: it would empty the journal, and what that holds would be lost"
	case errors.Is(err, blockdev.ErrReadOnly):
		return "lift its write protection, or mount it with -o ro"
	case errors.Is(err, blockdev.ErrNoMemory):
		return "give it more memory (pinned=), or mount it with -o ro"
	case isDevice(err):
		return "see that its device works again, or mount it with -o ro; do not run e2fsck before it does"
	}
	return ""
}

// isDevice says that the device has failed a request.
func isDevice(err error) bool {
	var failed *blockdev.Error
	return errors.As(err, &failed)
}

// WithRemedy is an error of mounting the volume with its name, and what to do.
func (v *FS) WithRemedy(err error) error {
	err = fmt.Errorf("%s: %w", v.Name(), err)
	if remedy := Remedy(err); remedy != "" {
		err = fmt.Errorf("%w; %s", err, remedy)
	}
	return err
}

// remedyMounted is Remedy for a volume that is mounted. failed says that the volume has the mark of the error.
func remedyMounted(err error, failed bool) string {
	switch {
	case IsCorrupt(err):
		return "run e2fsck on it"
	case !failed && errors.Is(err, blockdev.ErrNoSpace):
		return "make room where it is stored, unmount it, and mount it again, without e2fsck"
	case !failed && errors.Is(err, blockdev.ErrReadOnly):
		return "lift its write protection, unmount it, and mount it again, without e2fsck"
	case errors.Is(err, blockdev.ErrNoSpace): // what was accepted could not be made durable
		return "unmount it, make room where it is stored, and then run e2fsck on it: not before"
	case !failed:
		return "unmount it, mend the cause, and mount it again"
	}
	return "unmount it, see that its device works again, and then run e2fsck on it: not before"
}
