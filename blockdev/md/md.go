// Package md assembles Linux md arrays of level raid0 and linear from their members' metadata, as the kernel does, and gives an array as a
// block device. Nothing of an array is ever written but what its users write: such arrays have no state that changes while they run.
//
// A Superblock is what a member says of itself and of its array. Find looks for one on a device. Open checks that the members are those of
// one array, all of them, and gives a Device. A zone is a part of the array that is striped over the same members; a linear array has a zone
// for each member.
//
// Units are bytes unless a name says sectors, which are 512 bytes. A role is the place of a member in its array.
//
// Sources: the structure mdp_superblock_1 of <linux/raid/md_p.h>; md(4), for levels, zones, and the two layouts of raid0;
// Documentation/admin-guide/md.rst of Linux. What the kernel's md wrote is in testdata, with its recipe.
package md

import "github.com/lanefs/lanefs/blockdev"

// Member is a device that may belong to an array. All members take one another's buffers.
type Member struct {
	Name string // for messages
	Dev  blockdev.Device
}

const sector = 512

// Levels, as metadata has them.
const (
	levelLinear = -1
	levelRAID0  = 0
)

var levelNames = map[int32]string{levelLinear: "linear", levelRAID0: "raid0", 1: "raid1", 4: "raid4", 5: "raid5", 6: "raid6", 10: "raid10",
	-4: "multipath", -5: "faulty", -100: "container"}
