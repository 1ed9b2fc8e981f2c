package vfio

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Options of Open; the zero value is good.
type Options struct {
	Backend Backend
	BAR     int // the BAR that is mapped: BAR, Read32 and Write32 reach it
	Log     *slog.Logger
}

// Device is one PCI function that this process has opened.
type Device struct {
	m      machine
	addr   pci.Address
	log    *slog.Logger
	space  space
	info   deviceInfo
	config int64 // where the configuration space is in the device's file, in bytes
	bar    *region
	calls  sync.RWMutex // held to read while fd is used, to write when it is closed
	fd     int          // protected by calls; -1 once the device is let go
	gone   atomic.Pointer[error]
	// revoked says that the DMA-BUFs exported so far no longer reach the BARs, for good: IOMMUFD does not map one again.
	revoked atomic.Bool
	watch   *watch
	leaving atomic.Pointer[func() error] // OnLeave's

	mu     sync.Mutex // mapping and closing
	iovas  *allocator // protected by mu
	closed bool       // protected by mu
}

// Open takes the function at addr, which vfio-pci must have: it switches memory space and bus mastering on, maps the BAR
// and prepares an empty address space for DMA.
func Open(addr string, opt Options) (*Device, error) { return thisMachine.take(addr, opt) }

func (m machine) take(addr string, opt Options) (*Device, error) {
	a, err := pci.ParseAddress(addr)
	if err != nil {
		return nil, err
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	f, err := m.pci.Function(a)
	if err != nil {
		return nil, err
	}
	if f.Driver != pci.VFIO {
		have := "no driver has it"
		if f.Driver != "" {
			have = "the driver " + f.Driver + " has it"
		}
		return nil, fmt.Errorf("%s is not bound to %s (%s): run `lanefs bind %s` first", a, pci.VFIO, have, a)
	}
	at, err := m.attach(f, opt.Backend)
	if err != nil {
		return nil, err
	}
	d := &Device{m: m, addr: a, log: opt.Log.With("device", string(a)), space: at.space, fd: at.device}
	if err := d.open(at, opt); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", a, err), d.Close())
	}
	return d, nil
}

// attach takes the way that was asked for, or the first that is offered.
func (m machine) attach(f *pci.Function, want Backend) (attachment, error) {
	ways, why := m.offered(f)
	if want == Auto {
		if len(ways) == 0 {
			return attachment{}, fmt.Errorf("%s cannot be opened: %w; nor so: %w", f.Addr, why[IOMMUFD], why[Type1])
		}
		want = ways[0]
	}
	if err := why[want]; err != nil {
		return attachment{}, err
	}
	switch want {
	case IOMMUFD:
		return m.openIOMMUFD(f)
	case Type1:
		return m.openType1(f)
	}
	return attachment{}, fmt.Errorf("VFIO backend %q: want %q, %q, or none", want, IOMMUFD, Type1)
}

func (d *Device) open(at attachment, opt Options) error {
	d.info.argsz = uint32(unsafe.Sizeof(deviceInfo{}))
	if _, err := d.m.ioctl(d.fd, ioDeviceGetInfo, unsafe.Pointer(&d.info)); err != nil {
		return fmt.Errorf("VFIO_DEVICE_GET_INFO: %w", err)
	}
	if d.info.flags&deviceFlagPCI == 0 {
		return errors.New("VFIO says that this is no PCI device")
	}
	apertures, err := d.m.apertures()
	if err != nil {
		return fmt.Errorf("which addresses are other functions' is not known, and DMA to one would reach that function: %w", err)
	}
	if d.iovas, err = newAllocator(at.usable, apertures, at.pageSizes); err != nil {
		return err
	}
	if err := d.findConfig(); err != nil {
		return err
	}
	if err := d.enable(); err != nil {
		return err
	}
	if d.bar, err = mapRegion(d.m, d.fd, opt.BAR); err != nil {
		return err
	}
	d.watch, err = d.startWatch()
	return err
}

// apertures are where the BARs of all functions lie.
func (m machine) apertures() (all []interval, err error) {
	functions, err := m.pci.Functions()
	if err != nil {
		return nil, err
	}
	for _, f := range functions {
		bars, err := f.ReadBARs()
		if err != nil {
			return nil, err
		}
		for _, b := range bars {
			all = append(all, interval{b.First, b.Last})
		}
	}
	return all, nil
}

// Name is the PCI address; Backend is the way to the IOMMU that was taken.
func (d *Device) Name() string     { return string(d.addr) }
func (d *Device) Backend() Backend { return Backend(d.space.name()) }

// BAR is the whole BAR as memory. Parts that cannot be mapped are not accessible in it; Read32 and Write32 reach them.
func (d *Device) BAR() []byte { return d.bar.mem }

// with calls f with the device's descriptor, which stays open meanwhile.
func (d *Device) with(f func(fd int) error) error {
	d.calls.RLock()
	defer d.calls.RUnlock()
	if why := d.gone.Load(); why != nil {
		return *why
	}
	if d.fd < 0 {
		return os.ErrClosed
	}
	return f(d.fd)
}

// Reset is a function-level reset. Mappings for DMA stay; DMA-BUFs of the function's BARs are revoked while it lasts.
func (d *Device) Reset() error {
	err := d.with(func(fd int) error {
		if d.info.flags&deviceFlagReset == 0 {
			return errors.New("the function offers no reset")
		}
		d.revoked.Store(true)
		if _, err := d.m.ioctlValue(fd, ioDeviceReset, 0); err != nil {
			return fmt.Errorf("VFIO_DEVICE_RESET: %w", err)
		}
		return nil
	})
	if err == nil {
		err = d.enable() // the kernel restores the command register; this makes sure
	}
	if err != nil {
		// The function was pulled out, and the kernel has not said so. The BAR is replaced before a store reaches memory that is gone.
		if errors.Is(d.command(0, 0), errSilent) {
			d.letGo(errSilent)
		}
		return fmt.Errorf("resetting %s: %w", d.addr, err)
	}
	return nil
}

// Export gives n bytes of a BAR from off as a DMA-BUF, which the receiver closes. It is revoked when the device is reset
// or closed.
func (d *Device) Export(bar int, off, n int64) (gpu.Export, error) {
	req := dmaBufRequest{argsz: uint32(unsafe.Sizeof(dmaBufRequest{})), flags: featureGet | featureDMABUF,
		region: uint32(bar), openFlags: unix.O_RDWR | unix.O_CLOEXEC, rangeCount: 1, offset: uint64(off), length: uint64(n)}
	var fd int
	err := d.with(func(device int) (err error) {
		fd, err = d.m.ioctl(device, ioDeviceFeature, unsafe.Pointer(&req))
		return err
	})
	switch {
	case errors.Is(err, unix.ENOTTY):
		return gpu.Export{}, fmt.Errorf("%s: the kernel cannot export a BAR as DMA-BUF: that needs Linux 6.19 with CONFIG_VFIO_PCI_DMABUF", d.addr)
	case err != nil:
		return gpu.Export{}, fmt.Errorf("%s: exporting %d bytes of BAR %d from offset %d as DMA-BUF: VFIO_DEVICE_FEATURE_DMA_BUF: %w", d.addr, n, bar, off, err)
	}
	return gpu.Export{FD: fd, Size: n, Kind: gpu.ExportDMABUF}, nil
}

// Reachable is why other devices no longer reach this one's BARs by the DMA-BUFs exported; nil while they do.
func (d *Device) Reachable() error {
	if d.revoked.Load() {
		return fmt.Errorf("%s was reset, or its memory space was off: its exported memory is revoked", d.addr)
	}
	command, err := d.readCommand()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", d.addr, err)
	case command&commandMemory == 0:
		d.revoked.Store(true)
		return fmt.Errorf("%s: its memory space is off, its exported memory revoked", d.addr)
	}
	return nil
}

// Close gives the function back: nothing of it is mapped, and it can send nothing, when this returns. Mappings that are
// left end too, and are an error: their owner has not called Unmap.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	d.watch.stop()
	if d.iovas != nil && len(d.iovas.used) > 0 {
		errs = append(errs, fmt.Errorf("%s: closed with %d DMA mappings left", d.addr, len(d.iovas.used)))
	}
	if d.fd >= 0 && d.bar != nil {
		errs = append(errs, d.disable()) // before its memory goes away
	}
	errs = append(errs, d.bar.unmap()) // a mapping holds the device's file open
	errs = append(errs, d.release())
	errs = append(errs, d.space.close())
	return errors.Join(errs...)
}

// release lets the descriptor go, and with it the device leaves its address space.
func (d *Device) release() error {
	d.calls.Lock()
	defer d.calls.Unlock()
	if d.fd < 0 {
		return nil
	}
	err := d.space.detach()
	err = errors.Join(err, d.m.close(d.fd))
	d.fd = -1
	return err
}
