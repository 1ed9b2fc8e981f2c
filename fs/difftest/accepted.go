package difftest

import (
	"golang.org/x/sys/unix"
)

// acceptance is one difference that is not LaneFS's to mend, or that is meant.
type acceptance struct {
	name   string
	reason string
	// mend makes l, LaneFS's result, what the kernel's would be, if this is the difference.
	mend func(c *Config, o *Op, l, r *Result)
}

// accepted is every difference that a run does not report.
var accepted = []acceptance{}

// Differences that the generators avoid, for they would make the two trees different from there on:
//
//   - collapse and insert range: Linux's FUSE answers EOPNOTSUPP by itself (fs/fuse/file.c). The direct profile has them.
//   - RENAME_WHITEOUT: ext4 makes a character device 0:0; LaneFS has none, as nobody but overlayfs wants it.
//   - O_DIRECT on bytes that are no whole sectors: ext4 says EINVAL, FUSE does it.

// mend takes out what is accepted.
func mend(c *Config, o *Op, l, r *Result) {
	for _, a := range accepted {
		a.mend(c, o, l, r)
	}
}

var _ = unix.EINVAL
