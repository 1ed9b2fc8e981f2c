package cuda

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// find is the device that which names.
func (l *library) find(which string) (dev int32, err error) {
	var n int32
	if err := l.Early(l.deviceGetCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return 0, err
	}
	visible := fmt.Sprintf("(CUDA_VISIBLE_DEVICES is %q)", os.Getenv("CUDA_VISIBLE_DEVICES"))
	ordinal, ok := gpu.Ordinal(which)
	if which != "" && !ok {
		all := make([]gpu.Listed, n)
		for i := range all {
			if err := l.Early(l.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(i)); err != nil {
				return 0, err
			}
			if all[i], err = l.listed(dev); err != nil {
				return 0, err
			}
		}
		if ordinal, err = gpu.Choose(which, all); err != nil {
			return 0, fmt.Errorf("%w %s", err, visible)
		}
	}
	if ordinal >= int(n) {
		return 0, fmt.Errorf("device %d does not exist: the driver shows %d %s", ordinal, n, visible)
	}
	err = l.Early(l.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, err
}

// listed is what names a device. The second version of cuDeviceGetUuid gives a MIG instance's own UUID, the first that of its GPU [CUDA, 6.5].
func (l *library) listed(dev int32) (d gpu.Listed, err error) {
	var bus [32]byte
	if err := l.Early(l.deviceGetPCIBusID, uintptr(unsafe.Pointer(&bus[0])), uintptr(len(bus)), uintptr(dev)); err != nil {
		return d, err
	}
	whole, err := l.uuid(l.deviceGetUUID, dev)
	if err != nil {
		return d, err
	}
	d = gpu.Listed{PCI: pciAddress(dynlib.Buffer(bus[:])), UUID: "GPU-" + whole}
	if l.deviceGetUUID2.Have() {
		own, err := l.uuid(l.deviceGetUUID2, dev)
		if err != nil {
			return d, err
		}
		if own != whole {
			d.UUID = "MIG-" + own
		}
	}
	return d, nil
}

func (l *library) uuid(call driver.Call, dev int32) (string, error) {
	var b [16]byte
	err := l.Early(call, uintptr(unsafe.Pointer(&b[0])), uintptr(dev))
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), err
}
