// Package fs serves an ext4 volume to the kernel through FUSE. It knows POSIX rules, FUSE nodes and errno; it knows
// nothing of the disk layout, NVMe or GPUs.
//
// The nouns: a Server is one mount of one ext4.FS. A node is an inode that the kernel knows; its number for the kernel
// (the FUSE node ID) is its inode number, and the root's is 1. A victim is the file behind a name that a request takes away.
// Offsets and sizes are bytes.
//
// Who owns what. The kernel counts its references to a node: one for every reply that carries an entry, taken back by
// FORGET. The nodes table mirrors that count, and a node holds one reference on its ext4.Inode exactly as long as the
// count is above zero, so an unlinked file lives until the kernel lets go of it and no longer. Open files have no state
// here: the kernel keeps the flags and the offset, and an open file keeps its node known. Open directories do: a
// directory stream is a dirHandle.
//
// One mount is the only writer of its volume. So the kernel may keep names, attributes, link targets and pages for as
// long as it likes; whatever changes an inode behind the kernel's back must tell it (Server.invalidate).
//
// Permissions are the kernel's business (default_permissions), and so are ACL checks, file locks and the sticky bit.
// What the kernel leaves to a file system that says FUSE_HANDLE_KILLPRIV_V2 and FUSE_POSIX_ACL is done here: losing
// set-user-ID and set-group-ID bits, inheriting default ACLs, and keeping the mode and the ACL in step.
//
// Requests take two layers. rawFS is a thin layer on the raw protocol that sees what go-fuse's node API hides:
// FORGET counts, kill-privilege flags, the umask. Everything else is methods of node.
//
// The protocol is described by Linux's include/uapi/linux/fuse.h and Documentation/filesystems/fuse/ ([fuse] in
// comments).
package fs
