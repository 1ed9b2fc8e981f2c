package pcie

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Several controllers may have one namespace: those of a drive with two ports, or the virtual functions of one. A function that is bound keeps
// others from its controller, not from the namespace. So a namespace that can be shared is claimed: from other programs of LaneFS by a lock,
// and from the kernel, which may have it through another controller, by its block device.

// Shared names a namespace for all controllers of its subsystem, which have their serial number and model in common (Base §5.17.2.1) and use
// one NSID for it (Base §3.2.1).
type Shared struct {
	Serial, Model string
	NSID          uint32
}

func (s Shared) String() string {
	return fmt.Sprintf("namespace %d of the drive %s, serial %s", s.NSID, s.Model, s.Serial)
}

// lockNodes are device nodes, of which the first that there is has the locks: each user of VFIO may open it.
var lockNodes = []string{"dev/vfio/vfio", "dev/iommu"}

// ClaimShared claims a namespace until release is called or the process ends. It fails where the namespace is in use, or where that cannot
// be told.
func ClaimShared(sys pci.System, s Shared) (release func(), err error) {
	var fds []int
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		fds = nil
	}
	fd, err := s.lock(sys)
	if err != nil {
		return nil, err
	}
	fds = append(fds, fd)
	for _, disk := range s.disks(sys) {
		fd, err := unix.Open(sys.Path("dev", disk), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			fds = append(fds, fd)
			continue
		case unix.ENXIO:
			continue // it has just gone
		case unix.EBUSY:
			err = fmt.Errorf("%v is in use: the kernel's driver has it through another controller as %s, which is mounted or open exclusively", s, disk)
		default:
			err = fmt.Errorf("%v: the kernel's driver has it through another controller as %s, which cannot be kept from others: %w", s, disk, err)
		}
		release()
		return nil, err
	}
	return release, nil
}

// lock takes the lock of LaneFS: one byte of a device node, by open file description, at a place that the names give. The caller closes fd.
func (s Shared) lock(sys pci.System) (fd int, err error) {
	for _, node := range lockNodes {
		fd, err = unix.Open(sys.Path(node), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != unix.ENOENT {
			break
		}
	}
	if err != nil {
		return -1, fmt.Errorf("%v can be shared, and cannot be locked against a second user: %w", s, err)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %d", s.Serial, s.Model, s.NSID)
	at := int64(h.Sum64() >> 2) // its end is an offset, too
	err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return -1, fmt.Errorf("%v is in use: another LaneFS has it, through another controller; unmount it there first", s)
		}
		return -1, fmt.Errorf("%v cannot be locked against a second user: %w", s, err)
	}
	return fd, nil
}

// disks are the kernel's block devices of the namespace, through whichever controllers.
func (s Shared) disks(sys pci.System) (all []string) {
	controllers, _ := filepath.Glob(sys.Path("sys/class/nvme/nvme*"))
	for _, c := range controllers {
		if readLine(c, "serial") != s.Serial || readLine(c, "model") != s.Model {
			continue
		}
		list, _ := os.ReadDir(c)
		for _, e := range list {
			m := diskName.FindStringSubmatch(e.Name())
			if m != nil && readLine(c, e.Name(), "nsid") == strconv.FormatUint(uint64(s.NSID), 10) {
				all = append(all, "nvme"+m[1]+"n"+m[2])
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
