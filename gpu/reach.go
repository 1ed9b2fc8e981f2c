package gpu

// Reach says on what terms others than a memory's own kernels get at its bytes: other devices, and the CPU. Who allocates memory fills it
// in. Who maps memory for a device, moves data away from a GPU, or reads what another device wrote goes by it, and by nothing else: that
// the CPU has a view of memory says neither whose it is nor that it stays where it is.
//
// Every device reaches memory through an IOMMU, where n bytes are n addresses in a row; so there is no list of pages.
type Reach struct {
	Owner Owner
	// Keeper is asked about what other devices do there; nil where nobody takes the memory back, and its own kernels see at once what
	// others write.
	Keeper Keeper
	// Device is the device whose memory it is, as Facts.PCI names it; empty for host memory.
	Device string
}

// Apart says whether what another device writes to both memories goes two ways, so that nothing orders it: to the host and to a device, or to two devices.
func (r Reach) Apart(from Reach) bool {
	if r.host() || from.host() {
		return r.host() != from.host()
	}
	return r.Owner != from.Owner || r.Device != from.Device || r.Owner == OwnerFunction && r.Keeper != from.Keeper
}

func (r Reach) host() bool { return r.Owner == OwnerPages || r.Owner == OwnerDriver }

// Keeper knows what becomes of memory that other devices read and write. Two memories on the same terms have the same Keeper.
type Keeper interface {
	// Revoked is why other devices no longer reach the memory, nil while they do. A device that sends data there cannot tell: writes over
	// PCI Express are posted, so that it completes its command whether they arrive or not (PCIe §2.4.1). It may be a system call.
	Revoked() error
	// Arrived makes what other devices have written visible to the memory's own kernels, and to the CPU where it has a view. So it does with
	// what the CPU has written by that view, for kernels and for other devices.
	Arrived() error
}

// Direct is a Keeper that stores to a register of the device's and calls no driver, so nothing can hold it up.
type Direct interface{ Direct() }

// Owner is whose the memory is, and so who keeps it in its place while a device has its address.
type Owner uint8

const (
	OwnerPages    Owner = iota + 1 // ordinary pages, anonymous or a memfd's: whoever maps them for a device pins them
	OwnerDriver                    // host memory that a GPU's driver allocated: how it is mapped, and pinned, is the driver's affair
	OwnerDevice                    // a GPU's memory: its driver moves it when it must, and tells only those who imported its DMA-BUF
	OwnerFunction                  // a BAR of a PCI function that this process has by VFIO: it stays while the function is open
)

// Pinnable says whether an address of the memory can be given to a device by somebody who is not told when the memory moves.
func (o Owner) Pinnable() bool { return o == OwnerPages || o == OwnerFunction }

// Outlives says whether the bytes are still there when the GPU has failed.
func (o Owner) Outlives() bool { return o != OwnerDevice }

func (o Owner) String() string {
	return [...]string{"nobody", "the process", "the GPU's driver", "the GPU", "a PCI function"}[o]
}
