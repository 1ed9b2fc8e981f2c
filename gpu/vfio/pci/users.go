package pci

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// User is one use of a device that would lose data, or be killed, if the function were taken away.
type User struct {
	Device string // the node's name: sda1
	How    string // "is mounted at /data", "is swap space", "is part of md0"
}

func (u User) String() string { return u.Device + " " + u.How }

// Node is a device node in /dev, by name and number.
type Node struct {
	Name  string
	Dev   string // major:minor; empty: there is none
	Block bool   // else a character device
}

// Users are the processes that have the function open through VFIO. What uses the devices that a driver makes of it is System.Users'
// to find.
func (f *Function) Users() ([]User, error) { return f.sys.openBy(f.vfioNodes()) }

// Users finds everything that uses one of nodes: what the kernel has stacked on a block device, mounts, swap space, and processes that
// have it open.
func (s System) Users(nodes []Node) ([]User, error) {
	var users []User
	for _, n := range nodes {
		if n.Block {
			users = append(users, s.holders(n)...)
		}
	}
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if !n.Block {
			continue
		}
		for _, dir := range mounts[n.Dev] {
			users = append(users, User{n.Name, "is mounted at " + dir})
		}
	}
	users = append(users, s.swaps(nodes)...)
	open, err := s.openBy(nodes)
	return append(users, open...), err
}

// vfioNodes are the nodes by which user space has a function.
func (f *Function) vfioNodes() (all []Node) {
	if name := f.VFIODevice(); name != "" {
		all = append(all, Node{Name: name, Dev: readLine(f.SysPath("vfio-dev", name, "dev"))})
	}
	if f.Driver == VFIO && f.Group != "" {
		var st unix.Stat_t
		if unix.Stat(f.sys.Path("dev/vfio", f.Group), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			all = append(all, Node{Name: "vfio group " + f.Group, Dev: devName(st.Rdev)})
		}
	}
	return all
}

func devName(rdev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)) }

// holders are what the kernel has stacked on a block device: dm (LVM, LUKS, multipath), md, bcache; and loop devices,
// which sysfs does not count as such.
func (s System) holders(n Node) (users []User) {
	list, _ := os.ReadDir(s.Path("sys/class/block", n.Name, "holders"))
	for _, e := range list {
		name := e.Name()
		how := "is part of " + name
		if dm := readLine(s.Path("sys/class/block", name, "dm/name")); dm != "" {
			how = fmt.Sprintf("is part of the device-mapper device %q (%s)", dm, name)
			if uuid := readLine(s.Path("sys/class/block", name, "dm/uuid")); strings.HasPrefix(uuid, "LVM-") {
				group, volume := lvmNames(dm)
				how = fmt.Sprintf("is part of the LVM volume group %q, in the volume %q (%s)", group, volume, name)
			}
		} else if _, err := os.Stat(s.Path("sys/class/block", name, "md")); err == nil {
			how = "is part of the RAID array " + name
		}
		users = append(users, User{n.Name, how})
	}
	loops, _ := filepath.Glob(s.Path("sys/class/block/loop*/loop/backing_file"))
	for _, l := range loops {
		if readLine(l) == "/dev/"+n.Name {
			users = append(users, User{n.Name, "is behind " + filepath.Base(filepath.Dir(filepath.Dir(l)))})
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
	files, err := filepath.Glob(s.Path("proc/[0-9]*/mountinfo"))
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

func (s System) swaps(nodes []Node) (users []User) {
	b, _ := os.ReadFile(s.Path("proc/swaps"))
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		for _, n := range nodes {
			if n.Block && len(fields) > 0 && fields[0] == "/dev/"+n.Name {
				users = append(users, User{n.Name, "is swap space"})
			}
		}
	}
	return users
}

// openBy looks through the open files of all processes but this one. Of a file whose file system is another program's (FUSE) only what the kernel knows already is asked:
// one that does not answer would hold this up.
func (s System) openBy(nodes []Node) (users []User, err error) {
	type device struct {
		number string
		block  bool
	}
	names := map[device]string{}
	for _, n := range nodes {
		if n.Dev != "" {
			names[device{n.Dev, n.Block}] = n.Name
		}
	}
	files, err := filepath.Glob(s.Path("proc/[0-9]*/fd/*"))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(file))))
		var st unix.Statx_t
		if pid == os.Getpid() || unix.Statx(unix.AT_FDCWD, file, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		name, ours := names[device{fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor), kind == unix.S_IFBLK}]
		if !ours || kind != unix.S_IFBLK && kind != unix.S_IFCHR {
			continue
		}
		comm := readLine(s.Path("proc", strconv.Itoa(pid), "comm"))
		u := User{name, fmt.Sprintf("is open in process %d (%s)", pid, comm)}
		if !slices.Contains(users, u) {
			users = append(users, u)
		}
	}
	return users, nil
}

func readLine(path string) string {
	b, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}
