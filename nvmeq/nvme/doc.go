// Package nvme is what the NVM Express specifications say of bytes: registers, queue entries, opcodes, statuses, Identify data,
// log pages, features. It encodes and decodes, and does nothing else.
//
// An IOVA is an address as a controller sees it. Decoders take what a controller may have written: they return an error for
// what cannot be, and never trust a length.
//
// Specifications, cited by these tags in all packages:
//
//	Base     NVM Express Base Specification, revision 2.0 (2021-05)
//	NVM      NVM Express NVM Command Set Specification, revision 1.0 (2021-05)
//	PCIe     NVM Express NVMe over PCIe Transport Specification, revision 1.0 (2021-05)
package nvme
