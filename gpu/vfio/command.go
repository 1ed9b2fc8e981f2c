package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// The command register (PCIe §7.5.1.1.3): without memory space the BARs do not answer, and cannot be exported; without bus
// mastering the function sends nothing.
const (
	commandOffset = 4
	commandMemory = 1 << 1
	commandMaster = 1 << 2
	commandINTx   = 1 << 10 // interrupts by wire disabled: VFIO answers for this bit itself, also without a device
)

// errSilent is what a function that was pulled out looks like.
var errSilent = errors.New("the command register reads all ones: no device answers")

// enable switches memory space and bus mastering on.
func (d *Device) enable() error { return d.command(commandMemory|commandMaster, 0) }

// disable switches bus mastering off.
func (d *Device) disable() error {
	if d.gone.Load() != nil {
		return nil
	}
	return d.command(0, commandMaster)
}

func (d *Device) command(set, clear uint16) error {
	old, err := d.readCommand()
	if err != nil {
		return err
	}
	if clear&commandMemory != 0 {
		d.revoked.Store(true)
	}
	return d.with(func(fd int) error {
		var b [2]byte
		binary.LittleEndian.PutUint16(b[:], old&^clear|set)
		if _, err := d.m.pwrite(fd, b[:], d.config+commandOffset); err != nil {
			return fmt.Errorf("writing the command register: %w", err)
		}
		return nil
	})
}

// findConfig asks where the configuration space lies in the device's file; that does not change while it is open.
func (d *Device) findConfig() error {
	info := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: regionConfig}
	if _, err := d.m.ioctl(d.fd, ioGetRegionInfo, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("configuration space: VFIO_DEVICE_GET_REGION_INFO: %w", err)
	}
	d.config = int64(info.offset)
	return nil
}

func (d *Device) readCommand() (v uint16, err error) {
	err = d.with(func(fd int) error {
		var b [2]byte
		if _, err := d.m.pread(fd, b[:], d.config+commandOffset); err != nil {
			return fmt.Errorf("reading the command register: %w", err)
		}
		if v = binary.LittleEndian.Uint16(b[:]); v|commandINTx == 0xffff {
			return errSilent
		}
		return nil
	})
	return v, err
}
