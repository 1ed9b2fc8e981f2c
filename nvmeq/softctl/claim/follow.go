package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// system is what the kernel says about block devices. Tests have their own.
type system struct {
	sys   string                                      // where sysfs is
	loop  func(name string, dev uint64) (loop, error) // asks a loop device
	table func(dev uint64) ([]target, error)          // asks the device mapper
}

var kernel = system{sys: "/sys", loop: askLoop, table: askMapper}

// device is a block device on the way down.
type device struct {
	name string // the kernel's
	dev  uint64
	// alone: it is to be opened with O_EXCL, for nothing else keeps others from it.
	alone bool
}

func (d device) path() string { return "/dev/" + d.name }

// way is a device followed down.
type way struct {
	sys     system
	devices []device // without what a partition, an array or the device mapper stands on: that is claimed by them
	extents []extent
	mapped  bool // the device mapper is in it
}

// maxDepth bounds how many devices may stand on one another.
const maxDepth = 64

// follow follows a block device down.
func (s system) follow(dev uint64) (*way, error) {
	w := &way{sys: s}
	return w, w.down(dev, 0, toEnd, true, 0)
}

// down adds what [off, end) of a block device stands on.
func (w *way) down(dev uint64, off, end int64, alone bool, depth int) error {
	dir, err := filepath.EvalSymlinks(filepath.Join(w.sys.sys, "dev/block", number(dev)))
	if err != nil {
		return fmt.Errorf("block device %s: %w", number(dev), err)
	}
	if depth > maxDepth {
		return fmt.Errorf("block device %s: more than %d devices stand on one another", number(dev), maxDepth)
	}
	d := device{name: strings.ReplaceAll(filepath.Base(dir), "!", "/"), dev: dev, alone: alone}
	w.devices = append(w.devices, d)
	if exists(filepath.Join(dir, "loop")) { // it may grow with its file
		return w.throughLoop(d, dir, off, end, depth)
	}
	size, err := sectors(filepath.Join(dir, "size"))
	if err != nil {
		return err
	}
	end = min(end, size)
	if exists(filepath.Join(dir, "partition")) {
		start, err := sectors(filepath.Join(dir, "start"))
		if err != nil {
			return err
		}
		disk, err := deviceNumber(filepath.Dir(dir))
		if err != nil {
			return err
		}
		off, end = within(off, end, start, size)
		return w.down(disk, off, end, false, depth+1)
	}
	below, _ := os.ReadDir(filepath.Join(dir, "slaves"))
	if exists(filepath.Join(dir, "dm")) && len(below) > 0 {
		w.mapped = true
		if parts, ok := mapped(w.sys.table, dev, off, end); ok {
			for _, p := range parts {
				if err := w.down(p.dev, p.off, p.end, false, depth+1); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, b := range below {
		n, err := deviceNumber(filepath.Join(dir, "slaves", b.Name()))
		if err != nil {
			return err
		}
		if err := w.down(n, 0, toEnd, false, depth+1); err != nil { // which of its bytes, is not known
			return err
		}
	}
	if len(below) == 0 {
		w.extents = append(w.extents, extent{On: bottom{Block: true, Dev: dev}, Off: off, End: end})
	}
	return nil
}

// throughLoop adds what a loop device stands on.
func (w *way) throughLoop(d device, dir string, off, end int64, depth int) error {
	l, err := w.sys.loop(d.name, d.dev)
	if errors.Is(err, errNoAnswer) {
		return fmt.Errorf("%s: what it stands on is not known: %w", d.path(), err)
	}
	if err != nil {
		// Not everyone may open it. The path is readable to all.
		path := readLine(filepath.Join(dir, "loop/backing_file"))
		st, e := stat(path)
		if e != nil {
			return fmt.Errorf("%s: what it stands on is not known: %w", d.path(), err)
		}
		l = loop{dev: st.Dev, ino: st.Ino, rdev: st.Rdev, block: st.Mode&unix.S_IFMT == unix.S_IFBLK}
		l.off, _ = strconv.ParseInt(readLine(filepath.Join(dir, "loop/offset")), 10, 64)
		l.size, _ = strconv.ParseInt(readLine(filepath.Join(dir, "loop/sizelimit")), 10, 64)
	}
	size := l.size
	if size == 0 {
		size = toEnd
	}
	off, end = within(off, end, l.off, size)
	if l.block {
		return w.down(l.rdev, off, end, true, depth+1)
	}
	w.extents = append(w.extents, bottomOf(l.dev, l.ino, off, end, readLine(filepath.Join(dir, "loop/backing_file")))...)
	return nil
}

// has says whether the way leads over a device.
func (w *way) has(dev uint64) bool {
	for _, d := range w.devices {
		if d.dev == dev {
			return true
		}
	}
	return false
}

// deviceNumber reads the number of the device that has a directory in sysfs.
func deviceNumber(dir string) (uint64, error) {
	line := readLine(filepath.Join(dir, "dev"))
	var major, minor uint32
	if _, err := fmt.Sscanf(line, "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("%s: %q is no device number", dir, line)
	}
	return unix.Mkdev(major, minor), nil
}

// sectors reads a number of sectors of 512 bytes, and gives bytes.
func sectors(path string) (int64, error) {
	n, err := strconv.ParseInt(readLine(path), 10, 54)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n * 512, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readLine is the first line of a file, empty if there is none. A path keeps its spaces.
func readLine(path string) string {
	b, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}
