package vfio

// SetMemorySpace switches the function's memory space on (with bus mastering, as Open does) or off.
func (d *Device) SetMemorySpace(on bool) error {
	if on {
		return d.enable()
	}
	return d.command(0, commandMemory)
}
