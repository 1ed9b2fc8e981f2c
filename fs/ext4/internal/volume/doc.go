// Package volume is the lowest room of ext4 above the codecs: the superblock, the inode table, and operations that change
// metadata.
//
// The nouns: an FS is one mounted volume. An Inode is a live file of it, counted by references. An Op is one operation that
// changes metadata: it owns the locks of the inodes that it changes, a handle of the journal, and what must be put back when it
// fails. An orphan is an inode that the next mount must finish if this one does not get to it: deleted but still open, or
// being truncated.
//
// The package knows the root of an inode's tree, not the tree's other nodes; where the extended attributes of an inode are, not
// what they mean. It imports the codecs (disk, extent, blockmap, xattr), alloc and jbd2, and none of the rooms above. What the
// last Put of an inode has to free is their work: New is given the function that does it.
//
// FS and Inode have exported fields for the rooms above, which hold the same locks; docs/DESIGN.md has the order.
package volume
