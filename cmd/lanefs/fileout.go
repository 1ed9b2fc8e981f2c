package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// What a command writes beside its output (bench's drawing, prove's report, a trace) must not take the place of what is no such thing: a name too many,
// or in the wrong place, would be DEVICE itself, the file of a loop device, or a disk. So a file that is there is written over only if it is
// empty, or begins as one of its kind does.

// mayWrite says why a file that begins so may not, or cannot, be written at name: before the work of which it is to tell. It creates nothing and changes
// nothing. An empty name is none.
func mayWrite(name, begins string) error {
	if name == "" {
		return nil
	}
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return mayCreate(name)
	case err != nil:
		return fmt.Errorf("%q cannot be written: %w", name, reason(err))
	case isBlock(st):
		return fmt.Errorf("%q is a block device: name a file to be written", name)
	case st.IsDir():
		return fmt.Errorf("%q is a directory: name a file in it", name)
	}
	if err := unix.Access(name, unix.W_OK); err != nil {
		return fmt.Errorf("%q cannot be written: %w", name, err)
	}
	if !st.Mode().IsRegular() || st.Size() == 0 {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%q cannot be looked at, so it is not written over: %w", name, reason(err))
	}
	defer f.Close()
	head := make([]byte, len(begins))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != begins {
		return fmt.Errorf("%q is there, and begins with something else than %q: name another file, or remove it", name, begins)
	}
	return nil
}

// mayCreate says why a file that is not there cannot be created.
func mayCreate(name string) error {
	if _, err := os.Lstat(name); err == nil {
		return nil // a link to what is not there: creating that will say why not
	}
	dir := filepath.Dir(name)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%q cannot be created in %q: %w", filepath.Base(name), dir, err)
	}
	return nil
}

// isImage says whether a file has what disks and volumes of ext4 begin with: the signature of a boot record, or a superblock's.
func isImage(path string) bool {
	const magicAt = disk.SuperblockOffset + 0x38
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [magicAt + 2]byte
	n, _ := io.ReadFull(f, b[:])
	return n >= partition.SignatureEnd && partition.HasSignature(b[:]) || n == len(b) && binary.LittleEndian.Uint16(b[magicAt:]) == disk.SuperMagic
}
