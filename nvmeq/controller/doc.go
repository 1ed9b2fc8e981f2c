// Package controller drives one NVMe controller by polling: no interrupts, no kernel driver. It brings the controller up over
// a Transport, executes admin commands, finds namespaces, resets, and shuts down.
//
// The nouns. A Transport reaches one controller: its registers, its DMA. A Controller is an enabled one, its admin queue driven
// by the CPU. A Namespace is an array of logical blocks (LBA, counted from 0). Queues is what owns I/O queue pairs, an engine. A
// Chunk is data memory mapped once for the controller.
//
// Three kinds of address never mix: nvme.IOVA is what the controller uses for DMA, gpu.Addr is what kernels use, and Go slices
// are what the CPU uses. The same byte usually has all three.
//
// Ownership: the caller of Open owns the Runtime and the Transport and closes them after the Controller; the Controller owns
// the admin queue and closes the Queues that are attached.
//
// Lock order: Controller.resetMu, then what Queues.Hold takes, then one of the leaves Controller.admin, Controller.mu.
package controller
