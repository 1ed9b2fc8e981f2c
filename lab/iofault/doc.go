// Package iofault makes LaneFS's volumes fail in the middle of everything they do, and looks at what is left.
//
// The nouns. A Layout is a kind of volume, aged: its free space is in pieces, or nearly gone, and filled with a pattern. A
// sequence is operations of the differential generator (lab/diff), which follow from a profile and a seed. It is cut into
// windows: a window begins with a volume that is not mounted, and is a script of steps, which are mount, a few operations,
// sync and unmount. So the first operation meets cold caches. A Try is one run of a script in which one thing fails: the k-th
// command of the device, or the k-th allocation of pinned memory, in one Mode: which status, once or from then on, and which
// blocks of a write reach the medium all the same. k goes up from 1 until a script has no k-th command.
//
// The oracle is the twin: the same script without a fault, of which the whole tree is kept after every step. Every byte
// that a sequence writes says which operation and offset it is of, so no other file's can be mistaken for it.
//
// What is demanded of each Try:
//
//   - a step that fails has left, for those who read the mount as it goes on, the tree before it or the tree after it, or the
//     volume is read-only. Writes and what takes several transactions may be there in part: each byte old or new. The step, tried
//     again, gives what it gives the twin, and so do those that follow;
//   - a step that succeeds has done what the twin's did: whoever had to hear of the failure has heard;
//   - then the power is cut, which loses any part of what no flush has covered, or the volume is unmounted first. The medium
//     is replayed by e2fsprogs, and e2fsck must find nothing to mend but orphans; and for a part of the tries by the kernel and by LaneFS, e2fsck -fn
//     having nothing to say after;
//   - the tree there is one that the twin went through, not before what a sync, an fsync or an unmount said to be
//     durable; no byte is another file's;
//   - a volume that turned read-only has the error mark after the replay, and LaneFS mounts it read-only until e2fsck has
//     seen it; one that did not has no mark;
//   - nothing hangs, no buffer is left, no step panics, and free blocks are counted right.
package iofault
