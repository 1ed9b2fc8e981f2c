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
	old, at, err := d.readCommand()
	if err != nil {
		return err
	}
	if clear&commandMemory != 0 {
		d.revoked.Store(true)
	}
	return d.with(func(fd int) error {
		var b [2]byte
		binary.LittleEndian.PutUint16(b[:], old&^clear|set)
		if _, err := d.m.pwrite(fd, b[:], at); err != nil {
			return fmt.Errorf("writing the command register: %w", err)
		}
		return nil
	})
}

// readCommand gives the command register, and where it lies in the device's file.
func (d *Device) readCommand() (v uint16, at int64, err error) {
	err = d.with(func(fd int) error {
		config := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: regionConfig}
		if _, err := d.m.ioctl(fd, ioGetRegionInfo, unsafe.Pointer(&config)); err != nil {
			return fmt.Errorf("configuration space: VFIO_DEVICE_GET_REGION_INFO: %w", err)
		}
		at = int64(config.offset) + commandOffset
		var b [2]byte
		if _, err := d.m.pread(fd, b[:], at); err != nil {
			return fmt.Errorf("reading the command register: %w", err)
		}
		if v = binary.LittleEndian.Uint16(b[:]); v|commandINTx == 0xffff {
			return errSilent
		}
		return nil
	})
	return v, at, err
}
