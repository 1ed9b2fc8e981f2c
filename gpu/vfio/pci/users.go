package pci

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// User is somebody who would lose data or be killed if the function were taken away.
type User struct {
	Device string // nvme0n1p2
	How    string // "is mounted at /data", "is swap space", "is part of md0"
}

func (u User) String() string { return u.Device + " " + u.How }

var (
	controllerName = regexp.MustCompile(`^nvme[0-9]+$`)
	diskName       = regexp.MustCompile(`^nvme([0-9]+)(?:c[0-9]+)?n([0-9]+)$`)
)

// Disks are the names of the block devices on the function. A namespace with several paths has one node for all of them
// (nvme0n1) and a hidden one for each (nvme0c1n1).
func (f *Function) Disks() []string {
	var disks []string
	controllers, _ := os.ReadDir(f.sys.device(f.Addr, "nvme"))
	for _, c := range controllers {
		if !controllerName.MatchString(c.Name()) {
			continue
		}
		list, _ := os.ReadDir(f.sys.device(f.Addr, "nvme", c.Name()))
		for _, e := range list {
			if m := diskName.FindStringSubmatch(e.Name()); m != nil {
				disks = append(disks, "nvme"+m[1]+"n"+m[2])
			}
		}
	}
	slices.Sort(disks)
	return slices.Compact(disks)
}

// node is a block device or a character device, by number.
type node struct {
	name string
	dev  string // major:minor
}

// nodes are the disks and their partitions.
func (f *Function) nodes() (all []node) {
	for _, disk := range f.Disks() {
		dir := f.sys.path("sys/class/block", disk)
		all = append(all, node{disk, readLine(filepath.Join(dir, "dev"))})
		parts, _ := os.ReadDir(dir)
		for _, p := range parts {
			if _, err := os.Stat(filepath.Join(dir, p.Name(), "partition")); err == nil {
				all = append(all, node{p.Name(), readLine(filepath.Join(dir, p.Name(), "dev"))})
			}
		}
	}
	return all
}

// characters are the controller's own node, and the generic ones of its namespaces.
func (f *Function) characters() (all []node) {
	controllers, _ := os.ReadDir(f.sys.device(f.Addr, "nvme"))
	for _, c := range controllers {
		dir := f.sys.device(f.Addr, "nvme", c.Name())
		all = append(all, node{c.Name(), readLine(filepath.Join(dir, "dev"))})
	}
	for _, disk := range f.Disks() {
		name := strings.Replace(disk, "nvme", "ng", 1)
		if dev := readLine(f.sys.path("sys/class/nvme-generic", name, "dev")); dev != "" {
			all = append(all, node{name, dev})
		}
	}
	return all
}

// Users finds everybody who uses a block device on the function, or the function itself through VFIO.
func (f *Function) Users() ([]User, error) {
	nodes := f.nodes()
	var users []User
	for _, n := range nodes {
		users = append(users, f.sys.holders(n)...)
	}
	mounts, err := f.sys.mounts()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		for _, dir := range mounts[n.dev] {
			users = append(users, User{n.name, "is mounted at " + dir})
		}
	}
	users = append(users, f.sys.swaps(nodes)...)
	open, err := f.sys.openBy(append(append(nodes, f.characters()...), f.vfioNodes()...))
	return append(users, open...), err
}

// vfioNodes are the nodes by which user space has a function.
func (f *Function) vfioNodes() (all []node) {
	if name := f.VFIODevice(); name != "" {
		all = append(all, node{name, readLine(f.sys.device(f.Addr, "vfio-dev", name, "dev"))})
	}
	if f.Driver == VFIO && f.Group != "" {
		var st unix.Stat_t
		if unix.Stat(f.sys.path("dev/vfio", f.Group), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			all = append(all, node{"vfio group " + f.Group, devName(st.Rdev)})
		}
	}
	return all
}

func devName(rdev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)) }

// holders are what the kernel has stacked on a block device: dm (LVM, LUKS, multipath), md, bcache; and loop devices,
// which sysfs does not count as such.
func (s System) holders(n node) (users []User) {
	list, _ := os.ReadDir(s.path("sys/class/block", n.name, "holders"))
	for _, e := range list {
		name := e.Name()
		how := "is part of " + name
		if dm := readLine(s.path("sys/class/block", name, "dm/name")); dm != "" {
			how = fmt.Sprintf("is part of the device-mapper device %q (%s)", dm, name)
			if uuid := readLine(s.path("sys/class/block", name, "dm/uuid")); strings.HasPrefix(uuid, "LVM-") {
				group, volume := lvmNames(dm)
				how = fmt.Sprintf("is part of the LVM volume group %q, in the volume %q (%s)", group, volume, name)
			}
		} else if _, err := os.Stat(s.path("sys/class/block", name, "md")); err == nil {
			how = "is part of the RAID array " + name
		}
		users = append(users, User{n.name, how})
	}
	loops, _ := filepath.Glob(s.path("sys/class/block/loop*/loop/backing_file"))
	for _, l := range loops {
		if readLine(l) == "/dev/"+n.name {
			users = append(users, User{n.name, "is behind " + filepath.Base(filepath.Dir(filepath.Dir(l)))})
		}
	}
	return users
}

// lvmNames splits what LVM calls its device: group and volume with a hyphen between them, and their own hyphens doubled.
func lvmNames(dm string) (group, volume string) {
	const own = "\x00"
	group, volume, _ = strings.Cut(strings.ReplaceAll(dm, "--", own), "-")
	return strings.ReplaceAll(group, own, "-"), strings.ReplaceAll(volume, own, "-")
}

// mounts maps device numbers to mount points, in all mount namespaces.
func (s System) mounts() (map[string][]string, error) {
	files, err := filepath.Glob(s.path("proc/[0-9]*/mountinfo"))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	at := map[string][]string{}
	for _, file := range files {
		space, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns/mnt"))
		if space != "" && seen[space] {
			continue
		}
		all, err := readMounts(file)
		if err != nil {
			continue // it has ended, or is a zombie
		}
		seen[space] = true
		for _, m := range all {
			dev := fmt.Sprintf("%d:%d", m.Major, m.Minor)
			if !slices.Contains(at[dev], m.Mountpoint) {
				at[dev] = append(at[dev], m.Mountpoint)
			}
		}
	}
	return at, nil
}

func readMounts(file string) ([]*mountinfo.Info, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return mountinfo.GetMountsFromReader(r, nil)
}

func (s System) swaps(nodes []node) (users []User) {
	b, _ := os.ReadFile(s.path("proc/swaps"))
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		for _, n := range nodes {
			if len(fields) > 0 && fields[0] == "/dev/"+n.name {
				users = append(users, User{n.name, "is swap space"})
			}
		}
	}
	return users
}

// openBy looks through the open files of all processes but this one.
func (s System) openBy(nodes []node) (users []User, err error) {
	byDev := map[string]string{}
	for _, n := range nodes {
		if n.dev != "" {
			byDev[n.dev] = n.name
		}
	}
	files, err := filepath.Glob(s.path("proc/[0-9]*/fd/*"))
	if err != nil || len(byDev) == 0 {
		return nil, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(file))))
		var st unix.Stat_t
		if pid == os.Getpid() || unix.Stat(file, &st) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		name, ours := byDev[devName(st.Rdev)]
		if !ours || kind != unix.S_IFBLK && kind != unix.S_IFCHR || (kind == unix.S_IFBLK) != diskOrPartition(name) {
			continue
		}
		comm := readLine(s.path("proc", strconv.Itoa(pid), "comm"))
		u := User{name, fmt.Sprintf("is open in process %d (%s)", pid, comm)}
		if !slices.Contains(users, u) {
			users = append(users, u)
		}
	}
	return users, nil
}

var blockName = regexp.MustCompile(`^nvme[0-9]+n[0-9]+(p[0-9]+)?$`)

func diskOrPartition(name string) bool { return blockName.MatchString(name) }

// Claim opens every disk of the function for this process alone, so that nobody can begin to use one between a look at
// the users and the function's removal. The kernel refuses while somebody has claimed a disk or a partition of it, such
// as a file system this function's lists do not know.
func (f *Function) Claim() (release func(), err error) {
	var fds []int
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	for _, disk := range f.Disks() {
		fd, err := unix.Open(f.sys.path("dev", disk), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
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

func readLine(path string) string {
	b, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}
