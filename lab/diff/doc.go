// Package diff runs one sequence of system calls on two file systems and looks for a difference. It is how LaneFS is
// held against the kernel's ext4.
//
// The nouns: an Op is one system call, or a few that belong together, with every argument spelled out; a sequence of
// them follows from a Profile, a seed and a length alone, so it can be cut down and played again. A Side is a way to
// reach a volume: LaneFS through FUSE, LaneFS's ext4 package directly, or the kernel's ext4 on a loop device. Both sides
// begin with the same image. A Result is all that can be seen of an Op: errno, return value, bytes, names, and the
// attributes of what it touched, before and after.
//
// Who runs where. Each side is held by a keeper, a child process that mounts the image and unmounts it when its standard
// input ends, so that nothing stays mounted however the parent dies. Each process of a run is two workers, one a side,
// confined to its directory by chroot(2); the parent sends both the same Op and compares the two Results. Nobody makes
// system calls on a FUSE mount from the process that serves it: a page fault there could wait for itself.
//
// A run ends with the two whole trees compared, both volumes unmounted, e2fsck -fn on both, and each image read by the
// other side, which must show exactly the tree that its own side showed.
//
// Differences that are not LaneFS's own are listed in one table, with the reason: see accepted.
package diff
