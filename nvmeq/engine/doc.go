// Package engine executes NVMe I/O commands on queue pairs that kernels drive, on a GPU or on the CPU.
//
// The nouns. An Engine owns N lanes of one controller. A lane is one I/O queue pair, the rings by which the CPU hands it work,
// and the kernel code that posts entries, rings doorbells and reaps completions. A Command is one NVMe I/O command as the
// caller states it; the lane turns it into a submission queue entry. A driver is how the kernel code of a lane gets to run:
// by steps on the caller's thread, by one launch per batch, or by a resident kernel.
//
// A command, from Do to its return:
//
//  1. Engine.Do       checks the commands, and chooses a lane                              do.go
//  2. lane.submit     appends them to the lane's batches                                   batch.go
//  3. lane.wait       one caller at a time drives the lane; the others sleep               drive.go
//  4. lane.fill       turns commands into work items, in a ring that the kernel reads      drive.go, command.go
//  5. lane.kick       gets the kernel to run, if it does not                               bridge.go, driver.go, resident.go
//  6. the kernel      takes a work item, makes PRPs, writes the submission queue entry,    kernels/
//     rings the tail doorbell, reaps the completion, rings the head
//     doorbell, writes a result into a second ring
//  7. lane.forward    writes to the BAR what the kernel rang, if it rings by the bridge     bridge.go
//  8. lane.drain      takes results from the ring                                          result.go
//  9. lane.ended      ends the command, sends it again, or holds it back as lost           result.go, ladder.go
//  10. lane.end       wakes the caller whose last command has ended                        batch.go
//
// A command that fails: the status says whether the engine sends it again (result.go), up to Config.Retries times. A command
// without a completion goes up the ladder: abort, new queue pair, controller reset, out of service (ladder.go; the reset is in
// controller/reset.go). When what runs the lanes fails, they move to another runtime (failover.go).
//
// Prove and ProveDoorbell show by real I/O that memory and doorbells are where they should be; OpenBest chooses by that.
//
// Lock order: the controller's, in which lane.drive is what Queues.Hold takes; then lane.mu, a leaf.
package engine
