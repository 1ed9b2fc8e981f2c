// Package ext4 reads and writes ext4 volumes on a blockdev.Device. It knows the on-disk format, allocation, directories
// and extended attributes; it knows nothing of FUSE, NVMe or GPUs, and returns Go errors, never errno.
//
// The nouns: an FS is one mounted volume. An Inode is a live file of it, counted: FS.Inode, Lookup, Create and the like
// return a reference that the caller drops with Put; the last Put of a file without links frees it. A Buffer holds file
// bytes in memory that the controller can reach. Offsets and lengths are bytes, block numbers are jbd2.Block, logical
// blocks of a file are uint32.
//
// Every change of metadata happens under a jbd2.Handle. File data is written to its blocks before the handle that makes
// them reachable ends, so a transaction never commits a pointer to bytes that were not written (ordered mode).
//
// The format is described in Linux's Documentation/filesystems/ext4/ ([layout] in comments).
package ext4

import "github.com/lanefs/lanefs/blockdev"

// Open mounts the volume on dev. It takes no ownership of dev: the caller closes it after Close.
func Open(dev blockdev.Device, opt Options) (*FS, error) {
	v, err := newFS(dev, opt, endInode)
	if err != nil {
		return nil, err
	}
	v.journal, err = start(v)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Inspect looks at the volume on dev and writes nothing. A volume that Open would refuse is described by its superblock
// and comes without an FS; any other comes with one that is mounted for reading, which the caller closes. The error is
// for devices that hold no ext4 volume.
func Inspect(dev blockdev.Device) (*Inspection, *FS, error) {
	sb, err := readSuperblock(dev)
	if sb == nil {
		return nil, nil, err
	}
	if err == nil {
		err = refusal(sb)
	}
	var v *FS
	if err == nil {
		v, err = Open(dev, Options{ReadOnly: true, Logf: func(string, ...any) {}})
	}
	if err != nil {
		return inspectRefused(sb, err), nil, nil
	}
	return v.Inspect(), v, nil
}
