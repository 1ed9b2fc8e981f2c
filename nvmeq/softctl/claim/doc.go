// Package claim is claims on the bytes of an image or block device: a Claim keeps a second writer from them, whatever names and devices it
// comes by.
//
// A volume lies in an image file or on a block device, and a block device may stand on others: a loop device on a file, a
// partition on a disk, an array or a device-mapper device on several. So a device is followed down to its extents: byte
// ranges of bottoms, which are regular files and block devices that stand on nothing. Two devices that share a byte of a
// bottom are one medium.
//
// A program that takes a claim
//
//  1. has the block device open with O_EXCL, which the kernel denies while it is mounted, part of an array or claimed here,
//     also by one of its partitions or its disk
//  2. opens in that way what a loop device stands on, if that is a block device: the kernel does not
//  3. locks its range of each bottom that is a file, by open file description: the lock is the inode's, so it holds in every
//     mount namespace
//  4. and only then looks for swap space and loop devices on the same bytes, and for what has those open
//
// Of two programs that do so at once, each does 1 to 3 before it looks: so one of them sees the other, or both do. What the kernel
// mounts through a loop device, or uses as swap space, takes no lock, and is what step 4 is for.
//
// Files are known by device and inode number. A path in sysfs is another mount namespace's, perhaps: so a loop device is
// asked (LOOP_GET_STATUS64), and a file that cannot be opened here is looked for in /proc/locks.
package claim
