// Package media tests a matrix of failing media and of programs that write to a LaneFS mount on one. The tests run the binary
// over an image on a file system that fails (lab/faultfs). Writers record what fsync acknowledged. Afterwards e2fsck may repair
// nothing but what a power cut leaves, and what was acknowledged must be there after the next mount. If acknowledged data could
// be lost, fsync and the unmount must have returned an error.
//
// TestBesideKernel compares single calls, on such a medium, with the kernel's ext4 on the same one: what they return while it fails and after, what is
// recorded in the superblock, and what the next mount does.
//
// LANEFS_MEDIA_ROUNDS=N runs the matrix N times, each time with the faults at other moments.
package media
