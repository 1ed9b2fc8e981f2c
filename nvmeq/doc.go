// Package nvmeq is NVMe for a host that polls: no interrupts, no kernel driver. It brings one controller up over a
// Transport, finds its namespaces, and owns the I/O queue pairs whose commands GPU lanes build and complete.
//
// The nouns. A Transport reaches one controller: its registers, its DMA. A Controller is an enabled one, its admin
// queue driven by the CPU. A Namespace is an array of logical blocks (LBA, counted from 0). An Engine owns N lanes; a
// lane is one I/O queue pair, the rings by which the CPU hands it work, and the kernel code that posts, rings and
// reaps. A Command is one NVMe I/O command as callers state it; lanes turn it into a submission queue entry. A Chunk is
// data memory mapped once for the controller.
//
// Three kinds of address never mix: IOVA is what the controller uses for DMA, gpu.Addr is what kernels use, and Go
// slices are what the CPU uses. The same byte usually has all three.
//
// Who owns what: whoever calls Open owns the Runtime and the Transport and closes them after the Controller; the
// Controller owns the admin queue, its Engines and its Chunks.
//
// Specifications, cited by these tags:
//
//	Base     NVM Express Base Specification, revision 2.0 (2021-05)
//	NVM      NVM Express NVM Command Set Specification, revision 1.0 (2021-05)
//	PCIe     NVM Express NVMe over PCIe Transport Specification, revision 1.0 (2021-05)
//
// Lock order: Controller.ladder, then lane.drive (several only by the holder of ladder), then one of the leaves: lane.mu,
// Controller.admin, Controller.mu.
package nvmeq
