// Package powercut cuts the power of LaneFS's volumes and looks at what is left.
//
// The nouns. A Layout is a kind of volume. A Run is one random workload on such a volume over the whole stack, several
// goroutines at once, while the software controller records what reaches the medium. A cut is a point of that recording
// and a seed: it gives one medium that a loss of power could have left. A Tree is everything that can be seen of a
// volume. A model is what one goroutine of the workload did: it knows every state that its part of the tree went through.
//
// What is demanded of each cut:
//
//   - LaneFS recovers it, and so do the kernel (loop mount) and e2fsck; e2fsck -fn finds nothing wrong after each;
//   - the trees that they recover are the same, and a read-only look shows it too without writing a byte;
//   - for every goroutine the tree is what it was after one of its operations, none that a completed fsync or sync made
//     durable missing, none that had not begun at the cut there. An operation that takes several transactions may be there
//     in part: each block old or new;
//   - every block of a file has bytes that the file had there, back to what was last made durable, each of the device's
//     blocks as a whole: never another file's, never what lay there before the file had the block. For that all free
//     space is filled with a pattern first, and every byte written says which file, operation and offset it is of;
//   - recovery itself can be cut at any point, and gives the same tree again.
//
// The operations of a goroutine are drawn from the run's seed. How the goroutines interleave is not, so a failure is
// saved with its recording: see Save and Load.
package powercut
