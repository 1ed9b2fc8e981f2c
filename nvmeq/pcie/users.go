package pcie

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Linux's names for what its NVMe driver makes of a function.
var (
	controllerName = regexp.MustCompile(`^nvme[0-9]+$`)
	diskName       = regexp.MustCompile(`^nvme([0-9]+)(?:c[0-9]+)?n([0-9]+)$`)
)

// Disks are the names of the block devices on the function, as the kernel's driver has them: none with another driver, or for a function
// that is no NVMe controller. A namespace with several paths has one node for all of them (nvme0n1) and a hidden one for each (nvme0c1n1).
func Disks(f *pci.Function) []string {
	var disks []string
	controllers, _ := os.ReadDir(f.SysPath("nvme"))
	for _, c := range controllers {
		if !controllerName.MatchString(c.Name()) {
			continue
		}
		list, _ := os.ReadDir(f.SysPath("nvme", c.Name()))
		for _, e := range list {
			if m := diskName.FindStringSubmatch(e.Name()); m != nil {
				disks = append(disks, "nvme"+m[1]+"n"+m[2])
			}
		}
	}
	slices.Sort(disks)
	return slices.Compact(disks)
}

// Users are all uses of the function: of its disks and their partitions, of the character devices of the controller and its namespaces,
// and through VFIO.
func Users(f *pci.Function) ([]pci.User, error) {
	users, err := f.System().Users(append(blocks(f), characters(f)...))
	if err != nil {
		return nil, err
	}
	open, err := f.Users()
	return append(users, open...), err
}

// blocks are the disks and their partitions.
func blocks(f *pci.Function) (all []pci.Node) {
	for _, disk := range Disks(f) {
		dir := f.System().Path("sys/class/block", disk)
		all = append(all, pci.Node{Name: disk, Dev: number(dir), Block: true})
		parts, _ := os.ReadDir(dir)
		for _, p := range parts {
			part := filepath.Join(dir, p.Name())
			if _, err := os.Stat(filepath.Join(part, "partition")); err == nil {
				all = append(all, pci.Node{Name: p.Name(), Dev: number(part), Block: true})
			}
		}
	}
	return all
}

// characters are the controller's own node, and the generic ones of its namespaces.
func characters(f *pci.Function) (all []pci.Node) {
	controllers, _ := os.ReadDir(f.SysPath("nvme"))
	for _, c := range controllers {
		all = append(all, pci.Node{Name: c.Name(), Dev: number(f.SysPath("nvme", c.Name()))})
	}
	for _, disk := range Disks(f) {
		name := strings.Replace(disk, "nvme", "ng", 1)
		if dev := number(f.System().Path("sys/class/nvme-generic", name)); dev != "" {
			all = append(all, pci.Node{Name: name, Dev: dev})
		}
	}
	return all
}

// number is the major:minor of the device with that directory in sysfs, empty if it has none.
func number(dir string) string { return readLine(dir, "dev") }

// readLine is the first line of a file in sysfs, empty if it cannot be read.
func readLine(path ...string) string {
	b, _ := os.ReadFile(filepath.Join(path...))
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// Claim opens every disk of the function exclusively, so that nothing can begin to use one between a look at the users and the
// function's removal. It fails where the kernel knows a use that Users does not, such as a mount that /proc does not show. The
// caller calls release.
func Claim(f *pci.Function) (release func(), err error) {
	var fds []int
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	for _, disk := range Disks(f) {
		fd, err := unix.Open(f.System().Path("dev", disk), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT || err == unix.ENXIO {
			continue // no node, no user
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("%s is in use: it cannot be opened exclusively: %w", disk, err)
		}
		fds = append(fds, fd)
	}
	return release, nil
}
