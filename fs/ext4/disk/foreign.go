package disk

import "bytes"

// What lies on a device that holds no ext4 volume is told by signatures of other formats, for the error of a mount.

// ForeignSize is how many bytes of a device's beginning Foreign looks at.
const ForeignSize = 68 << 10

// signature is where a format says what it is.
type signature struct {
	off   int
	magic string
	what  string // with its article
	do    string // what the user can do
}

const (
	itsTools     = "mount it with the kernel's driver"
	onePartition = "mount one of its partitions: DEVICE-part1, or DEVICE,DEVICE,p1 of an array"
	unlock       = "unlock it (cryptsetup open), and mount what appears in /dev/mapper"
	theArray     = "mount the device that it is a part of (lsblk shows it)"
	toRaw        = "convert it to a raw image first: qemu-img convert -O raw"
)

// signatures in the order in which they are looked for: a file system in a partition's first blocks may have a boot sector's mark too.
var signatures = []signature{
	{0, "XFSB", "an XFS volume", itsTools},
	{0x10040, "_BHRfS_M", "a btrfs volume", itsTools},
	{4096 - 10, "SWAPSPACE2", "swap space", "it has no files; choose another device"},
	{4096 - 10, "SWAP-SPACE", "swap space", "it has no files; choose another device"},
	{1024, "\x10\x20\xf5\xf2", "an F2FS volume", itsTools},
	{4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcachefs volume", itsTools},
	{0, "hsqs", "a squashfs image", itsTools},
	{32769, "CD001", "an ISO 9660 image", itsTools},
	{0, "LUKS\xba\xbe", "an encrypted volume (LUKS)", unlock},
	{512, "LABELONE", "a physical volume of LVM", "activate its volume group (vgchange -ay) and mount a logical volume"},
	{0, "\xfc\x4e\x2b\xa9", "a part of an md array", theArray},
	{4096, "\xfc\x4e\x2b\xa9", "a part of an md array", theArray},
	{0, "QFI\xfb", "a qcow2 image", toRaw},
	{0, "KDMV", "a VMDK image", toRaw},
	{0, "\x1f\x8b", "a gzip archive", "unpack it first"},
	{0, "\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"},
	{0, "\xfd7zXZ\x00", "an xz archive", "unpack it first"},
	{3, "NTFS    ", "an NTFS volume", itsTools},
	{3, "EXFAT   ", "an exFAT volume", itsTools},
	{0x52, "FAT32   ", "a FAT volume", itsTools},
	{0x36, "FAT1", "a FAT volume", itsTools},
	{512, "EFI PART", "a partition table (GPT)", onePartition},
	{4096, "EFI PART", "a partition table (GPT)", onePartition},
	{510, "\x55\xaa", "a partition table (MBR)", onePartition},
}

// Foreign says what b, the beginning of a device, holds if that is not an ext4 volume, and what the user can do; false if it
// is nothing that is known.
func Foreign(b []byte) (what, remedy string, ok bool) {
	for _, s := range signatures {
		if len(b) >= s.off+len(s.magic) && bytes.HasPrefix(b[s.off:], []byte(s.magic)) {
			return s.what, s.do, true
		}
	}
	if len(bytes.Trim(b, "\x00")) == 0 {
		return "blank: it begins with zeros", "format it with mkfs.ext4, if it may be overwritten", true
	}
	return "", "", false
}
