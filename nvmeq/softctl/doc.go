// Package softctl is NVMe controllers in software. A Controller has a BAR (registers and doorbells, memory that lanes may store to
// directly), an address table (IOVA to memory), submission and completion queues, and namespaces, each a range of an image (package media).
// A command is fetched from a submission queue, checked, carried out against the image and completed in a completion queue; its data
// moves straight between the image and the mapped memory. serve.go has the steps of a command.
//
// A Controller behaves as a PCI function would, seen from its BAR 0 and its DMA. It has no threads unless Options ask for them: it
// works when the host calls Step, on the host's thread. Only a flush, which lasts as long as the disk below takes, has a
// goroutine, so that no other command waits for it.
//
// Lock order: Controller.mu (registers and everything administrative), then subQueue.mu (one queue's commands), then
// compQueue.mu, then the leaves: events, error log, injector, recorder. The data path takes only the locks of its own
// queue pair. A reader of the address table holds Controller.mu or a subQueue.mu; Unmap waits for both.
//
// Specifications, with the tags used in comments:
//
//   - [BASE] NVM Express Base Specification 2.0, and 1.4 for what Options.Version 1.4 reports
//   - [NVM] NVM Command Set Specification 1.0
//   - [PCIE] NVMe over PCIe Transport Specification 1.0
//
// All the encoding here is this package's own: the host side has another, and each checks the other.
package softctl
