// Command lanefs mounts an ext4 volume in user space. Kernels on a GPU or on CPU threads own the NVMe queue pairs that move its data.
//
// The nouns. The command is a process that the user starts: `lanefs mount`, `lanefs stat`. The daemon is the process that serves one
// mount. It holds the stack: a gpu.Runtime, an NVMe controller, the engine with its lanes, the block device and the volume. It
// listens at a control socket, by which commands ask it. The runtime directory has, for each mount, a lock that the daemon holds, the
// socket and the log.
//
// A mount:
//
//  1. main.go finds the command; helper.go makes one of the arguments of mount(8).
//  2. mount.go reads the options (internal/mountopt) and resolves DEVICE (device.go, function.go) and DIR (mountpoint.go).
//  3. previous.go waits for a mount of DEVICE, or at DIR, that is ending. secondmount.go mounts a volume that is mounted already.
//  4. daemon.go starts the daemon, which is this program again, and waits for its answer.
//  5. serve.go, in the daemon: claims DIR (rundir.go), opens the log (environment.go), the stack from the bottom up (stack.go, drive.go,
//     runtime.go, ladder.go) and the pool of device memory (share.go).
//  6. serve.go mounts (package fs), asks the mount through the kernel, listens at the control socket (control.go, operations.go), gives up
//     privileges (privileges.go), and answers the command, which returns 0.
//
// An unmount:
//
//  1. umount.go finds the daemon's socket (client.go) and asks it to settle: to write what the backing store might have no room for
//     while the mount can still stay (nospace.go).
//  2. It asks the daemon to tell when it has closed the device, and takes the mount away.
//  3. The daemon sees its mount go when the last file is closed and the last mount of the volume, in any mount namespace, has gone.
//     watch.go says what it waits for (mountns.go).
//  4. shutdown.go, in the daemon: waits for requests at the socket, closes the share, then the stack from the top down.
//     The volume commits and checkpoints, the controller flushes and shuts down.
//  5. The daemon removes its files, answers, and ends. The command returns 0.
//
// umount(8), fusermount3 -u and a signal to the daemon begin at step 3.
package main
