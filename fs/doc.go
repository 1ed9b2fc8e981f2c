// Package fs serves an ext4 volume to the kernel through FUSE. It knows FUSE requests, POSIX rules and errno. It knows nothing of the disk
// layout, NVMe or GPUs, and uses only the exported API of package ext4.
//
// The nouns. A Server is one mount of one ext4.FS. A node is a loaded inode that the kernel knows; its FUSE node ID is its inode number,
// and the root's is 1. A victim is the file whose name a request removes or replaces. An External is a file that is accessed without the
// kernel, by package share. Offsets and sizes are bytes.
//
// Reading, read(2):
//
//  1. The kernel sends READ of up to 1 MiB if its page cache does not have the bytes. With read-ahead several are in flight, in parallel.
//     (*node).Read in read.go
//  2. ext4 allocates one pinned buffer for the range, takes the inode's lock shared, maps the range to extents and holes, and zeroes the
//     holes.  (*ext4.Inode).Read; ext4/internal/contents/read.go, mapping.go
//  3. One call has the device read all extents into the buffer.  blockdev.Device.Do
//  4. The namespace cuts the extents into NVMe commands.  blockdev/namespace/do.go, split.go
//  5. The commands go to a lane, as work items in its ring.  (*engine.Engine).Do in nvmeq/engine
//  6. The lane, a kernel on the GPU or a thread of the CPU, builds SQEs, rings the doorbell, and reaps the completions.
//     kernels/step.h, post.h, reap.h
//  7. go-fuse writes the reply to /dev/fuse straight from the pinned buffer, which is then released.  pinned in read.go
//
// Writing, write(2):
//
//  1. The kernel sends WRITE of up to 1 MiB. It lies in a buffer of go-fuse. If the kill-privilege flag is set the file loses its set-ID
//     bits.  (*rawFS).Write in rawfiles.go
//  2. A page of the write-back cache goes to (*node).writeBack, a direct write to writeDirect, any other to Write.  write.go, direct.go
//  3. ext4 copies the bytes once, into pinned buffers of whole blocks, and completes partial blocks by reading them.
//     (*ext4.Inode).Write; ext4/internal/contents/write.go
//  4. If nothing is to be allocated, the device writes the blocks in place, under the inode's lock. Otherwise a handle of the journal is
//     begun, blocks are allocated, the device writes the data, and then the extents are inserted.  writing.go there; ext4/alloc, jbd2
//  5. The data takes the way of steps 3 to 6 above.
//  6. Options.Changed is called (device memory that holds the range becomes stale), the inode is made durable if it is synchronous, and
//     the number of bytes is the reply.  (*node).store, written
//
// fsync(2):
//
//  1. The kernel writes back its dirty pages (flow above) and sends FSYNC.  (*node).Fsync in write.go
//  2. ext4 looks up the transaction that last changed the inode; for fdatasync(2), the last one that is needed to read the file.
//     (*ext4.Inode).Fsync; ext4/internal/contents/fsync.go
//  3. The journal commits that transaction and waits for the commit: blocks of the log, a flush of the device, the commit block with FUA.
//     If the commit had begun before the call, the device is flushed after it.  (*jbd2.Journal).Sync; jbd2/sync.go, commit.go
//  4. Log blocks, flush and commit block are requests to blockdev.Device.Do, and go on as above.
//  5. A failed flush or commit aborts the journal: this fsync and all later ones fail.
//
// Who owns what. The kernel counts its references to an inode: one for every reply that carries an entry, taken back by FORGET. The
// table of nodes mirrors that count in a record of some bytes. A node, which holds a reference on its ext4.Inode, is there while a request
// works on it or a file is open, and for a while after; then it is dropped, and loaded again when it is needed. The node of a file without
// names is there until the kernel forgets the file, which frees it. Open files have no state of their own here, since the kernel keeps the
// flags and the offset. An open directory does: it is a dirHandle.
//
// A mount is the only writer of its volume. So the kernel may cache names, attributes, link targets and pages for any time. Code that
// changes an inode without a request of the kernel's must notify the kernel (Server.invalidate, invalidateAttr).
//
// The kernel checks permissions (default_permissions), ACLs, file locks and the sticky bit. With FUSE_HANDLE_KILLPRIV_V2 and
// FUSE_POSIX_ACL it leaves the rest to the file system: clearing set-user-ID and set-group-ID bits, inheriting default ACLs, and keeping
// mode and ACL consistent.
//
// Requests pass two layers. rawFS takes the protocol's messages, finds their nodes and keeps them in use. Everything else is a method of
// node. go-fuse's own API of nodes is not used: it has a tree of names in memory, which took 2 KB for each inode.
//
// The protocol is described by Linux's include/uapi/linux/fuse.h and Documentation/filesystems/fuse/ ([fuse] in comments).
package fs
