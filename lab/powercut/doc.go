// Package powercut cuts the power of LaneFS's volumes and checks what is left.
//
// The nouns. A Layout is a kind of volume. A Run is one random workload on such a volume over the whole stack, several
// goroutines at once, while the software controller records what reaches the medium. A cut is a point of that recording
// and a seed: it gives one medium that a loss of power could have left. A Tree is all files of a volume. A model records what
// one goroutine of the workload did: every state of its part of the tree.
//
// Requirements for each cut:
//
//   - LaneFS recovers it, and so do the kernel (loop mount) and e2fsck; e2fsck -fn finds nothing wrong after each;
//   - the trees that they recover are the same, and a read-only mount shows the same tree without writing a byte;
//   - for every goroutine the tree is the one after one of its operations. That operation is not before the last one that a
//     completed fsync or sync made durable, and not after the last one that had begun at the cut. An operation that takes
//     several transactions may be done in part: each block old or new;
//   - every block of a file has bytes that the file had there since it was last made durable, each of the device's blocks
//     as a whole: never another file's bytes, never what the block held before the file got it. To tell, all free space is
//     filled with a pattern first, and every byte written encodes its file, operation and offset;
//   - recovery itself can be cut at any point, and gives the same tree again.
//
// The operations of a goroutine are drawn from the run's seed. How the goroutines interleave is not, so a failure is
// saved with its recording: see Save and Load.
package powercut
