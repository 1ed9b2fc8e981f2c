package vfio

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// watch waits for the kernel's word that the device must be let go: a request (hot unplug, unbinding), or an error that
// the bus reported. Until the device's descriptor is closed the kernel's removal of it hangs.
type watch struct {
	request *os.File
	fault   *os.File // nil where the device reports no errors
	done    chan struct{}
	faulted chan struct{}
}

func (d *Device) startWatch() (*watch, error) {
	w := &watch{done: make(chan struct{}), faulted: make(chan struct{})}
	var err error
	if w.request, err = eventFD(d.m, d.fd, irqRequest); err != nil {
		return nil, fmt.Errorf("the device's request interrupt: %w", err)
	}
	w.fault, _ = eventFD(d.m, d.fd, irqError) // only PCI Express functions have it
	listen := func(f *os.File, done chan struct{}, why error) {
		defer close(done)
		if f == nil {
			return
		}
		var count [8]byte
		if _, err := f.Read(count[:]); err == nil {
			d.letGo(why)
		}
	}
	go listen(w.request, w.done, errors.New("the kernel asks for the device: it is being removed or unbound"))
	go listen(w.fault, w.faulted, errors.New("the bus reported an error that cannot be recovered from"))
	return w, nil
}

// eventFD has the kernel signal interrupt index of the device to a new eventfd.
func eventFD(k kernel, device, index int) (*os.File, error) {
	fd, err := k.eventfd()
	if err != nil {
		return nil, err
	}
	set := irqSet{argsz: uint32(unsafe.Sizeof(irqSet{})), flags: irqEventFD, index: uint32(index), count: 1, eventfd: int32(fd)}
	if _, err := k.ioctl(device, ioSetIRQs, unsafe.Pointer(&set)); err != nil {
		k.close(fd)
		return nil, fmt.Errorf("VFIO_DEVICE_SET_IRQS: %w", err)
	}
	return os.NewFile(uintptr(fd), "vfio-irq"), nil
}

// stop ends the watch and waits for it.
func (w *watch) stop() {
	if w == nil {
		return
	}
	w.request.Close()
	if w.fault != nil {
		w.fault.Close()
	}
	<-w.done
	<-w.faulted
}

// OnLeave has f called before the device is given back while it is in use; nil for nothing. By then the CPU reads its registers as all
// ones. f takes back what others have of the BAR: a GPU's registration of it leads to the same addresses when another driver has the
// device. While f fails to, the kernel waits for the device until Close.
func (d *Device) OnLeave(f func() error) { d.leaving.Store(&f) }

// letGo is the end of the device while its users still have it: its registers read as all ones from now on, stores go
// nowhere, and the kernel gets it back. DMA mappings stay until they are unmapped.
func (d *Device) letGo(why error) {
	why = fmt.Errorf("%s is gone: %w", d.addr, why)
	if !d.gone.CompareAndSwap(nil, &why) {
		return
	}
	d.log.Error("device let go", "why", why.Error())
	var kept error
	if f := d.leaving.Load(); f != nil && *f != nil {
		kept = (*f)()
	}
	if err := d.bar.abandon(); err != nil {
		d.log.Error("replacing the BAR", "error", err.Error())
	}
	if kept != nil {
		d.log.Error("the kernel does not get the device back before the end: its registers may still be stored to", "why", kept.Error())
		return
	}
	if err := d.release(); err != nil {
		d.log.Error("giving the device back", "error", err.Error())
	}
}

// removed is why the device is no longer there, nil while it is.
func (d *Device) removed() error {
	if why := d.gone.Load(); why != nil {
		return *why
	}
	return nil
}
