// Package vm has the tests that run inside a virtual machine, where PCI functions can be bound, unplugged and made to fail.
// `make lab` boots it: QEMU's NVMe controllers behind its IOMMU, and an ivshmem function whose BAR stands for a GPU's memory.
// Outside the guest every test is skipped.
//
// The functions, by address:
//
//	0000:00:03.0  NVMe, the one that is mounted
//	0000:00:04.0  ivshmem: 256 MiB of plain memory in BAR 2
//	0000:00:05.0  NVMe, and 05.1 another: one IOMMU group
//	0000:00:06.0  NVMe with namespaces of 512 and 4096 bytes, zoned, and with metadata
//	0000:00:0a.0  NVMe with two virtual functions (SR-IOV), which tests switch on; 00:0b.0 another controller of its subsystem. Namespace 1 is
//	              shared, 2 is the first controller's, 3 is attached to neither
//	root ports "port1" and "port2": tests plug controllers of their own in
//
// QEMU's monitor is at /dev/virtio-ports/qmp: through it tests make media that fail, and plug and unplug controllers.
package vm
