package vfio

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// both runs a test over either backend; prepare may change the machine before the function is opened.
func both(t *testing.T, prepare func(*double), test func(*testing.T, *double, *Device)) {
	for _, way := range []Backend{IOMMUFD, Type1} {
		t.Run(string(way), func(t *testing.T) {
			m, d := newDouble(t, way)
			prepare(d)
			dev, err := m.take(testAddr, Options{})
			require.NoError(t, err)
			test(t, d, dev)
			require.NoError(t, dev.Close())
			require.Empty(t, d.left())
		})
	}
}

func asIs(*double) {}

// The IOMMU's ranges are kept, also where there are more than a first guess has room for, and the BARs of the machine's
// functions are left out: sysfs says that ours lies from 4 GiB to 4 GiB + 4 MiB, where IOVAs would begin.
func TestRangesAreKept(t *testing.T) {
	holes := func(d *double) {
		d.usable = nil
		for i := range uint64(40) {
			d.usable = append(d.usable, interval{iovaFirst + i<<21, iovaFirst + i<<21 + 1<<20 - 1})
		}
	}
	both(t, holes, func(t *testing.T, d *double, dev *Device) {
		pages, _ := memories(t, 1<<20)
		for i := range 38 {
			a, err := dev.Map(pages, 0, 1<<20)
			require.NoError(t, err)
			require.GreaterOrEqual(t, uint64(a), uint64(iovaFirst+4<<20))
			require.Equal(t, uint64(iovaFirst+4<<20)+uint64(i)<<21, uint64(a))
			defer func() { require.NoError(t, dev.Unmap(a)) }()
		}
		_, err := dev.Map(pages, 0, 1<<20)
		require.ErrorContains(t, err, "no room for 1048576 bytes of IOVA: 38 mappings are in use")
		require.Len(t, d.mapped, 38)
	})
}

// An IOMMU whose pages are larger than the CPU's maps whole pages of its own or nothing.
func TestPageSizesAreKept(t *testing.T) {
	large := func(d *double) { d.pageSizes = 1<<16 | 1<<21 }
	both(t, large, func(t *testing.T, d *double, dev *Device) {
		pages, _ := memories(t, 128<<10)
		_, err := dev.Map(pages, 0, 4096)
		require.ErrorContains(t, err, "want a multiple of the IOMMU's page of 65536")
		a, err := dev.Map(pages, 0, 64<<10)
		require.NoError(t, err)
		require.Zero(t, a%(64<<10))
		require.Equal(t, map[uint64]uint64{uint64(a): 64 << 10}, d.mapped)
		require.NoError(t, dev.Unmap(a))
		require.Empty(t, d.mapped)
	})
	m, d := newDouble(t, IOMMUFD)
	d.pageSizes = 1 << 21
	_, err := m.take(testAddr, Options{})
	require.ErrorContains(t, err, "smallest page is 2097152 bytes")
	require.Empty(t, d.left())
}

// Where pages have 64 KiB, as the CPU's and the IOMMU's have on Arm, an allocation is mapped in whole pages, and a BAR that is smaller than one has it to itself.
func TestLargePages(t *testing.T) {
	large := func(d *double) { d.page, d.pageSizes = 64<<10, 1<<16|1<<29 }
	both(t, large, func(t *testing.T, d *double, dev *Device) {
		pages, _ := memories(t, 4<<20)
		a, err := dev.Map(pages, 64<<10, 4096)
		require.NoError(t, err)
		require.Equal(t, map[uint64]uint64{uint64(a): 64 << 10}, d.mapped)
		require.NoError(t, dev.Unmap(a))
		require.Empty(t, d.mapped)
		_, err = dev.Map(pages, 4096, 4096)
		require.ErrorContains(t, err, "pages have 65536 bytes here")
		_, err = dev.Map(pages, 4<<20, 4096)
		require.ErrorContains(t, err, "of memory of 4194304 bytes")

		require.Len(t, dev.BAR(), testBAR)
		require.Equal(t, 64<<10, cap(dev.BAR()), "what a GPU's driver registers")
	})
}

// Of a BAR with the MSI-X table in its third page the rest is memory; the table is reached all the same.
func TestSparseBAR(t *testing.T) {
	sparse := func(d *double) { d.sparse = [][2]uint64{{0, 0x2000}, {0x3000, 0x1000}} }
	both(t, sparse, func(t *testing.T, d *double, dev *Device) {
		for _, off := range []int64{0, 0x1ffc, 0x2000, 0x2ffc, 0x3000, testBAR - 4} {
			d.store(t, off, 1, 2, 3, byte(off>>8))
			require.Equal(t, 0x030201|uint32(off>>8)<<24, dev.Read32(off), "%#x", off)
			dev.Write32(off, 0xa0b0c0d0)
			require.Equal(t, uint32(0xa0b0c0d0), dev.Read32(off), "%#x", off)
		}
		dev.Write64(0x1ffc, 0x1122334455667788)
		require.Equal(t, uint64(0x1122334455667788), dev.Read64(0x1ffc), "one half memory, the other not")
		require.Len(t, dev.BAR(), testBAR)
		require.EqualValues(t, 0x88, dev.BAR()[0x1ffc])
		for _, off := range []int64{-4, testBAR - 3, testBAR} {
			require.Equal(t, ^uint32(0), dev.Read32(off), "outside")
			dev.Write32(off, 1)
		}
	})
}

// The kernel asks for the device while it is in use.
func TestTakenAway(t *testing.T) {
	for _, irq := range []uint32{irqRequest, irqError} {
		both(t, asIs, func(t *testing.T, d *double, dev *Device) {
			pages, _ := memories(t, 8192)
			a, err := dev.Map(pages, 0, 8192)
			require.NoError(t, err)
			bar := dev.BAR()
			dev.Write32(0x1000, 7)
			require.NoError(t, dev.removed())
			d.signal(t, irq)
			require.Eventually(t, func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return !d.has(deviceFile)
			}, time.Minute, time.Millisecond, "the kernel gets the device back though it is in use")
			require.ErrorContains(t, dev.removed(), testAddr+" is gone")

			require.True(t, bytes.Equal(bytes.Repeat([]byte{0xff}, testBAR), bar), "where the BAR was there are ones")
			bar[0x1000] = 5 // what a lane would do: no fault, and no effect
			require.Equal(t, ^uint32(0), dev.Read32(0x1000))
			dev.Write32(0, 1)
			var b [1]byte
			unix.Pread(d.device, b[:], 0x1000)
			require.EqualValues(t, 7, b[0], "what is written reaches nothing")

			_, err = dev.Map(pages, 0, 4096)
			require.ErrorContains(t, err, "is gone")
			require.ErrorContains(t, dev.Reset(), "is gone")
			_, err = dev.Export(0, 0, 4096)
			require.ErrorContains(t, err, "is gone")
			require.NoError(t, dev.Unmap(a), "what was mapped is still unmapped")
		})
	}
}

// A function that was pulled out without a word: its configuration space reads as all ones.
func TestSilent(t *testing.T) {
	both(t, asIs, func(t *testing.T, d *double, dev *Device) {
		bar := dev.BAR()
		d.store(t, testConfig+commandOffset, 0xff, 0xff)
		require.ErrorContains(t, dev.Reset(), "resetting "+testAddr+": the command register reads all ones: no device answers")
		require.ErrorContains(t, dev.removed(), "no device answers")
		require.Equal(t, ^uint32(0), dev.Read32(0))
		require.EqualValues(t, 0xff, bar[0])
	})
	m, d := newDouble(t, IOMMUFD)
	d.store(t, testConfig+commandOffset, 0xff, 0xff)
	_, err := m.take(testAddr, Options{})
	require.ErrorContains(t, err, "no device answers")
	require.Empty(t, d.left())
}

func TestReset(t *testing.T) {
	both(t, asIs, func(t *testing.T, d *double, dev *Device) {
		d.store(t, testConfig+commandOffset, 0, 0)
		require.NoError(t, dev.Reset())
		var b [2]byte
		unix.Pread(d.device, b[:], testConfig+commandOffset)
		require.EqualValues(t, commandMemory|commandMaster, b[0], "it answers and may send again")
	})
	both(t, func(d *double) { d.noReset = true }, func(t *testing.T, d *double, dev *Device) {
		require.ErrorContains(t, dev.Reset(), "the function offers no reset")
		require.NoError(t, dev.removed())
	})
}

// A mapping whose unmapping failed keeps its address: it is not given to another.
func TestFailedUnmap(t *testing.T) {
	for way, call := range map[Backend]string{IOMMUFD: request(ioIOASUnmap), Type1: request(ioUnmapDMA)} {
		m, d := newDouble(t, way)
		f := &faulty{kernel: d, at: -1, err: unix.EIO}
		dev, err := (machine{f, m.pci}).take(testAddr, Options{})
		require.NoError(t, err)
		pages, _ := memories(t, 4096)
		a, err := dev.Map(pages, 0, 4096)
		require.NoError(t, err)
		f.at = len(f.calls)
		require.ErrorContains(t, dev.Unmap(a), call)
		require.ErrorContains(t, dev.Close(), "closed with 1 DMA mappings left")
		require.ErrorIs(t, dev.Unmap(a), os.ErrClosed)
		require.Empty(t, d.left(), "Close ends it")
	}
}

// With the group of a device that is pulled out type1's mappings go: they are not left, and not an error.
func TestUnmapWithoutGroup(t *testing.T) {
	m, d := newDouble(t, Type1)
	dev, err := m.take(testAddr, Options{})
	require.NoError(t, err)
	pages, _ := memories(t, 4096)
	a, err := dev.Map(pages, 0, 4096)
	require.NoError(t, err)
	d.pull()
	require.NoError(t, dev.Unmap(a))
	require.NoError(t, dev.Close())
	require.Empty(t, d.left())
}

// What cannot be opened says why, and what to do.
func TestOpenErrors(t *testing.T) {
	m, d := newDouble(t, IOMMUFD)
	dev, err := m.take(testAddr, Options{})
	require.NoError(t, err)
	_, err = m.take(testAddr, Options{})
	require.ErrorContains(t, err, deviceNodes+"/vfio0: device or resource busy: another program has it")
	_, err = m.take(testAddr, Options{Backend: Type1})
	require.ErrorContains(t, err, "modprobe vfio_iommu_type1")
	_, err = m.take(testAddr, Options{Backend: "other"})
	require.ErrorContains(t, err, `VFIO backend "other"`)
	require.NoError(t, dev.Close())

	_, err = m.take(testAddr, Options{BAR: 5})
	require.ErrorContains(t, err, "BAR 5")
	f := &faulty{kernel: d, at: 2, err: unix.EACCES} // after the two looks at what is offered
	_, err = (machine{f, m.pci}).take(testAddr, Options{})
	require.ErrorContains(t, err, "udev rule")
	require.Empty(t, d.left())

	driver := filepath.Join(m.pci.Root, "sys/bus/pci/devices", testAddr, "driver")
	require.NoError(t, os.Remove(driver))
	_, err = m.take(testAddr, Options{})
	require.ErrorContains(t, err, "no driver has it): run `lanefs bind 0000:00:03.0` first")
	_, err = machine{d, pci.System{Root: m.pci.Root}}.take("0000:00:1f.7", Options{})
	require.ErrorContains(t, err, "there is no PCI function 0000:00:1f.7")
	_, err = m.take("nonsense", Options{})
	require.ErrorContains(t, err, "is not a PCI address")
}

// What others have of the BAR is taken back before the kernel gets the device; while it is not, the kernel waits.
func TestLeaves(t *testing.T) {
	for _, refuses := range []error{nil, errors.New("a kernel hangs")} {
		both(t, asIs, func(t *testing.T, d *double, dev *Device) {
			has := func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.has(deviceFile)
			}
			bar := dev.BAR()
			dev.Write32(0x1000, 7)
			called := make(chan bool, 1)
			dev.OnLeave(func() error {
				called <- has() && bar[0x1000] == 7 && dev.Read32(0x1000) == ^uint32(0)
				return refuses
			})
			d.signal(t, irqRequest)
			require.True(t, <-called, "the device is still ours, and the CPU uses it no more")
			require.Eventually(t, func() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&bar[0x1000]))) == ^uint32(0) },
				time.Minute, time.Millisecond)
			if refuses == nil {
				require.Eventually(t, func() bool { return !has() }, time.Minute, time.Millisecond)
				return
			}
			dev.watch.stop() // letGo has returned
			require.True(t, has(), "nobody else gets doorbells that a kernel may ring")
		})
	}
}

// Where the BARs of other functions are must be known: a DMA address that is in one may reach that function and not memory.
func TestAperturesUnknown(t *testing.T) {
	m, d := newDouble(t, IOMMUFD)
	other := filepath.Join(m.pci.Root, "sys/bus/pci/devices/0000:00:04.0")
	require.NoError(t, os.MkdirAll(other, 0o755))
	for _, name := range []string{"class", "vendor", "device"} {
		require.NoError(t, os.WriteFile(filepath.Join(other, name), []byte("0x030000\n"), 0o644))
	}
	_, err := m.take(testAddr, Options{})
	require.ErrorContains(t, err, "which addresses are other functions' is not known")
	require.ErrorContains(t, err, "PCI function 0000:00:04.0: its BARs: ")
	require.Empty(t, d.left())
	require.NoError(t, os.WriteFile(filepath.Join(other, "resource"), nil, 0o644))
	dev, err := m.take(testAddr, Options{})
	require.NoError(t, err)
	require.NoError(t, dev.Close())
}
