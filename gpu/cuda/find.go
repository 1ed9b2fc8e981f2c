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
	get := func(ordinal int) error {
		return l.Early(l.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	}
	ordinal, err := gpu.Find(which, int(n), func(ordinal int) (d gpu.Listed, err error) {
		if err = get(ordinal); err == nil {
			d, err = l.listed(dev)
		}
		return d, err
	}, "the driver", fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q", os.Getenv("CUDA_VISIBLE_DEVICES")))
	if err == nil {
		err = get(ordinal)
	}
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
