package main

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Metadata of arrays may be at a device's end, where an ext4 volume that has all of the device keeps files: who may write a file may write what looks like
// metadata, of an array of one for example, whose only volume is in another file. Real metadata is behind what the array has. So what lies within the volume, or
// within a partition, is data.

// member is what a device says of itself as the member of an array; nil without an error: it is none. The error is *md.Foreign where the array is of a kind that LaneFS does
// not know.
func member(d blockdev.Device) (*md.Superblock, error) {
	s, err := md.Find(d)
	var foreign *md.Foreign
	var at blockdev.Bytes
	switch {
	case s != nil:
		at = s.At
	case errors.As(err, &foreign):
		at = foreign.At
	default:
		return nil, err
	}
	if at > md.LastAtBeginning && (volumeEnd(d) > at || inPartition(d, at)) {
		return nil, nil
	}
	return s, err
}

// volumeEnd is where the ext4 volume that begins with a device ends; 0: there is none, or it is of more devices than this.
func volumeEnd(d blockdev.Device) blockdev.Bytes {
	s := volumeOn(d)
	size := d.Info().Size()
	if s == nil || s.LogBlockSize > 6 || s.BlocksCount > uint64(size>>(10+s.LogBlockSize)) {
		return 0
	}
	return blockdev.Bytes(s.BlocksCount) << (10 + s.LogBlockSize)
}

func inPartition(d blockdev.Device, at blockdev.Bytes) bool {
	t, err := partition.Read(d)
	if err != nil {
		return false
	}
	for _, p := range t.Parts {
		if first := blockdev.Bytes(p.First) * d.Info().BlockSize; at >= first && at < first+blockdev.Bytes(p.Blocks)*d.Info().BlockSize {
			return true
		}
	}
	return false
}

// ofMember says that a disk is the member of an array, whose partitions are those that it seems to have: a half of a mirror looks like the mirror.
func ofMember(d blockdev.Device) error {
	s, err := member(d)
	var foreign *md.Foreign
	switch {
	case s != nil:
		return fmt.Errorf("it is a member of %s", s.Array())
	case errors.As(err, &foreign):
		return err
	}
	return nil // what cannot be read, or is damaged, makes no member
}

// volumeOn is the superblock of the ext4 volume that begins with a device; nil: there is none.
func volumeOn(d blockdev.Device) *disk.Superblock {
	n := max(4096, int(d.Info().BlockSize))
	if d.Info().Size() < blockdev.Bytes(n) {
		return nil
	}
	b, err := d.Alloc(n)
	if err != nil {
		return nil
	}
	defer b.Release()
	if err := d.Read(0, b.Slice(0, n)); err != nil {
		return nil
	}
	s, err := disk.DecodeSuperblock(b.Bytes()[disk.SuperblockOffset:n])
	if err != nil {
		return nil
	}
	return s
}
