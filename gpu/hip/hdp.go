package hip

import (
	"sync/atomic"
	"unsafe"

	"github.com/lanefs/lanefs/gpu/internal/driver"
)

// What the CPU and other devices write into a GPU's memory goes through its host data path (HDP), which keeps some of it for a while. A
// store to one of its registers has it written out ([HSA], hsa_amd_hdp_flush_t).

// arrived is driver.Config's, nil for a device without that register.
func (l *library) arrived(a agent) func(*driver.Device) error {
	var f hdpFlush
	if err := l.hsaDo(l.agentInfo, uintptr(a.Handle), hsaAgentInfoHDP, uintptr(unsafe.Pointer(&f))); err != nil || f.Mem == nil {
		return nil
	}
	return func(*driver.Device) error { return f.flush() }
}

func (f *hdpFlush) flush() error {
	atomic.StoreUint32(f.Mem, 1)
	atomic.LoadUint32(f.Mem) // the answer comes after the store has arrived (PCIe §2.4.1)
	return nil
}
