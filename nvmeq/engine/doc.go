// Package engine executes NVMe I/O commands on queue pairs that kernels drive, on a GPU or on the CPU.
//
// The nouns. An Engine owns N lanes of one controller. A lane is one I/O queue pair, the rings by which the CPU hands it work,
// and the kernel code that posts entries, rings doorbells and reaps completions. A Command is one NVMe I/O command as the
// caller states it; the lane turns it into a submission queue entry. A driver is how the kernel code of a lane gets to run:
// by steps on the caller's thread, by one launch per batch, or by a resident kernel.
//
// A command, from Do to its return:
//
//  1. Engine.Do (do.go) checks the commands and chooses a lane. A lone one may need no more than that (lone.go).
//  2. lane.submit (batch.go) appends them to the lane's batches.
//  3. lane.wait (drive.go): one caller at a time drives the lane, the others sleep.
//  4. lane.fill (drive.go, command.go) makes a work item of each command, in a ring that the kernel reads.
//  5. lane.kick (bridge.go) gets the kernel to run unless it does, by the driver (driver.go, resident.go).
//  6. The kernel (package kernels) takes a work item, makes PRPs, writes the submission queue entry, rings the tail doorbell,
//     reaps the completion, rings the head doorbell, and writes a result to a second ring.
//  7. lane.forward (bridge.go) writes the doorbells to the BAR, if the kernel cannot store there.
//  8. lane.drain (result.go) takes results from the ring.
//  9. lane.ended (result.go) ends the command, queues it to be sent again, or adds it to the lost ones (ladder.go).
//  10. lane.end (batch.go) wakes the caller when the last command of its batch has ended.
//
// A command that fails: the status says whether the engine sends it again (result.go), up to Config.Retries times. A command
// without a completion goes up the ladder: abort, new queue pair, controller reset, out of service (ladder.go; the reset is in
// controller/reset.go). When what runs the lanes fails, they move to another runtime (failover.go).
//
// Prove and ProveDoorbell show by real I/O that memory and doorbells are where they should be; OpenBest chooses by that.
//
// Lock order: the controller's, in which lane.drive is what Queues.Hold takes; then lane.mu, a leaf.
package engine
