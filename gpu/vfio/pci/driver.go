package pci

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// VFIO is the driver that hands a function to user space.
const VFIO = "vfio-pci"

const (
	// bindTimeout bounds how long a driver may take to let a function go or to take it: a device's shutdown and
	// start are in it.
	bindTimeout = 60 * time.Second
	bindPoll    = 10 * time.Millisecond
)

// Rebind moves the function to driver, and to no other until the next Rebind; an empty name means whichever driver
// matches. It returns once that is so. The caller must know that the function is not in use.
func (f *Function) Rebind(driver string) error {
	if driver != "" {
		if _, err := os.Stat(f.sys.Path("sys/bus/pci/drivers", driver)); err != nil {
			return fmt.Errorf("the kernel has no driver %s loaded: modprobe %s", driver, driver)
		}
	}
	override := driver
	if override == "" {
		override = "\n" // a line end alone clears it
	}
	if err := f.write("driver_override", override); err != nil {
		return err
	}
	if f.Driver != "" && (driver == "" || f.Driver != driver) {
		if err := f.write("driver/unbind", string(f.Addr)); err != nil {
			return err
		}
		if err := f.await("let it go", func() bool { return f.Driver == "" }); err != nil {
			return err
		}
	}
	probe := f.sys.Path("sys/bus/pci/drivers_probe")
	if err := write(probe, string(f.Addr)); err != nil {
		return fmt.Errorf("PCI function %s: no driver takes it: %w", f.Addr, err)
	}
	if driver == "" {
		// No driver of the kernel's may want it; that is an answer too. One that does has it when the write returns.
		return f.refresh()
	}
	if err := f.await(driver+" take it", func() bool { return f.Driver == driver }); err != nil {
		return err
	}
	return nil
}

func (f *Function) await(what string, done func() bool) error {
	deadline := time.Now().Add(bindTimeout)
	for {
		if err := f.refresh(); err != nil {
			return err
		}
		if done() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("PCI function %s: waited %v for driver %q to %s; dmesg may say why not", f.Addr, bindTimeout, f.Driver, what)
		}
		time.Sleep(bindPoll)
	}
}

func (f *Function) write(name, value string) error { return write(f.SysPath(name), value) }

func write(path, value string) error {
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteString(value)
	return errors.Join(err, w.Close())
}
