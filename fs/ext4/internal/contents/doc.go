// Package contents is what files hold: it reads, writes, truncates, allocates ahead and copies.
//
// The nouns: the tree of an inode maps its logical blocks (uint32) to blocks of the volume, as runs that are written,
// unwritten or holes. A stage is the bytes of one write in whole blocks. Data is bytes that were read, in a pinned buffer. A
// Target is memory that the CPU may not reach, a Transfer one range of a file to or from it. Inline is content that lies in
// the inode itself.
//
// A write is Write, then overwriteShared where every block is there already, else write under volume.Op: gather maps and
// allocates, one blockdev.Do carries the bytes, join makes the blocks reachable.
//
// It imports volume and the codecs. Attributes, names and recovery lie above it.
package contents
