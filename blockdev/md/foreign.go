package md

import (
	"bytes"
	"encoding/binary"

	"github.com/lanefs/lanefs/blockdev"
)

// Metadata that LaneFS does not read, at a device's end: md's of version 0.90, and that of others who make mirrors. A half of such a mirror looks like the volume,
// so it must be known for what it is. Where it is and how it begins is what libblkid goes by, too.

// Foreign is the error of a device with such metadata.
type Foreign struct {
	What string
	At   blockdev.Bytes
}

func (f *Foreign) Error() string { return f.What }

const (
	intelSign = "Intel Raid ISM Cfg Sig. "
	drbdMagic = 0x8374026b // of a clean device; the next number is that of one that was in use
	drbdAt    = 60         // in the last 4 KiB
)

// findForeign looks for it on a device of size bytes in blocks; read gives superSize bytes, or nil where there are not so many.
func findForeign(size, block blockdev.Bytes, read func(at blockdev.Bytes) ([]byte, error)) error {
	// Version 0.90 begins in the last 64 KiB that are aligned to 64 KiB, in the byte order of the machine.
	const reserved = 64 << 10
	at := size&^(reserved-1) - reserved
	b, err := read(at)
	if err != nil || b == nil {
		return err
	}
	if binary.LittleEndian.Uint32(b) == magic && binary.LittleEndian.Uint32(b[4:]) == 0 {
		return &Foreign{"it has md metadata of version 0.90, which LaneFS does not read: mdadm --assemble --update=metadata makes it version 1.0", at}
	}
	const last = superSize
	if b, err = read(size&^(last-1) - last); err != nil {
		return err
	}
	if m := binary.BigEndian.Uint32(b[drbdAt:]); m == drbdMagic || m == drbdMagic+1 {
		return &Foreign{"it has DRBD's metadata: mount the device that DRBD makes of it (/dev/drbdN)", size&^(last-1) - last}
	}
	at = size - 2*block
	from := min(at, size-superSize)
	if b, err = read(from); err != nil || b == nil {
		return err
	}
	if bytes.HasPrefix(b[at-from:], []byte(intelSign)) {
		return &Foreign{"it is in an array of Intel's firmware (VROC, RST): have the kernel assemble it (mdadm --assemble --scan), and mount the block device", at}
	}
	return nil
}
