package hip

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// find is the ordinal of the device that which names.
func (l *library) find(which string) (ordinal int, err error) {
	var n int32
	if err := l.Early(l.deviceCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return 0, err
	}
	return gpu.Find(which, int(n), l.listed, "ROCm",
		fmt.Sprintf("HIP_VISIBLE_DEVICES is %q, ROCR_VISIBLE_DEVICES is %q", os.Getenv("HIP_VISIBLE_DEVICES"), os.Getenv("ROCR_VISIBLE_DEVICES")))
}

// listed is what names a device. Its UUID is, with AMD, the letters that follow "GPU-" in ROCR_VISIBLE_DEVICES.
func (l *library) listed(ordinal int) (d gpu.Listed, err error) {
	var bus [32]byte
	if err := l.Early(l.devicePCIBusID, uintptr(unsafe.Pointer(&bus[0])), uintptr(len(bus)), uintptr(ordinal)); err != nil {
		return d, err
	}
	d.PCI = strings.ToLower(dynlib.Buffer(bus[:]))
	var id [17]byte
	if !l.deviceUUID.Have() || l.Early(l.deviceUUID, uintptr(unsafe.Pointer(&id[0])), uintptr(ordinal)) != nil {
		return d, nil // not every device has one
	}
	if text := dynlib.Buffer(id[:]); gpu.IsUUID("GPU-" + text) {
		d.UUID = "GPU-" + text
	}
	return d, nil
}
