// Package diff runs one sequence of system calls on two file systems and compares the results: LaneFS and the kernel's ext4.
//
// The nouns: an Op is one system call, or a few that belong together, with every argument given. A sequence of Ops follows
// from a Profile, a seed and a length alone, so it can be shortened and run again. A Side is a way to reach a volume: LaneFS
// through FUSE, LaneFS's ext4 package directly, or the kernel's ext4 on a loop device. Both sides begin with the same image.
// A Result is everything an Op returns: errno, return value, bytes, names, and the attributes of the files it touched, before
// and after.
//
// The processes. A keeper is a child process that mounts one side's image and unmounts it when its standard input ends, so
// that nothing stays mounted however the parent dies. Each process of a run is two workers, one per side, confined to a
// directory by chroot(2); the parent sends both the same Op and compares the two Results. The process that serves a FUSE
// mount makes no system calls on it: a page fault there could wait for itself.
//
// A run ends with the two whole trees compared, both volumes unmounted, e2fsck -fn on both, and each image read by the
// other side, which must show exactly the tree that its own side showed.
//
// Differences that are not LaneFS's own are listed in one table, with the reason: see accepted.
package diff
