// Package iofault makes device commands and allocations fail in the middle of operations on LaneFS's volumes, and checks what
// is left.
//
// The nouns. A Layout is a kind of volume, aged: its free space is in pieces, or nearly used up, and filled with a pattern; one is on an md array. A
// sequence is operations of the differential generator (lab/diff), which follow from a profile and a seed. It is divided into
// windows: a window begins with a volume that is not mounted, and is a script of steps: mount, a few operations, sync and
// unmount. So the first operation finds cold caches. A try is one run of a script in which one thing fails: the k-th command
// of the device, or the k-th allocation of pinned memory, in one Mode: which status, once or from then on, and which blocks of
// a write reach the medium nevertheless. k goes up from 1 until a script has no k-th command.
//
// A try is compared with its twin: the same script without a fault, whose whole tree is recorded after every step. Every byte
// that a sequence writes follows from its operation and offset, so bytes of another file are recognised.
//
// Requirements for each try:
//
//   - after a step that fails, the mount shows the tree before the step or the tree after it, or the volume is read-only.
//     Writes and operations of several transactions may be done in part: each byte old or new. The step, repeated, returns
//     what it returned to the twin, and so do the steps that follow;
//   - a step that succeeds has done what the twin's did: no failure is lost;
//   - then the power is cut, which loses any part of what no flush has covered, or the volume is unmounted first. e2fsck must
//     recover the medium and find nothing to repair but orphans. For a part of the tries the kernel and LaneFS recover it,
//     too, and e2fsck -fn must find nothing wrong afterwards;
//   - the recovered tree is one of the twin's, not before a sync, an fsync or an unmount that succeeded; no byte is another
//     file's;
//   - a volume that turned read-only has the error mark after the replay, and LaneFS mounts it read-only until e2fsck has
//     checked it; one that did not has no mark, nor has one whose last writes were refused at unmount for lack of room or memory;
//   - nothing hangs, no buffer is left, no step panics, and free blocks are counted right.
package iofault
