package claim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// loop is what a loop device says of itself (struct loop_info64).
type loop struct {
	block    bool
	dev, ino uint64 // of the file that it stands on
	rdev     uint64 // its number, if that is a block device
	off      int64  // where the device begins, in bytes
	size     int64  // how long it is at most; 0: no limit
}

// askLoop asks a loop device. Looking needs no more than the right to read it.
func askLoop(name string, dev uint64) (loop, error) {
	fd, err := openNode(name, dev, unix.O_RDONLY)
	if err != nil {
		return loop{}, err
	}
	defer unix.Close(fd)
	i, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return loop{}, fmt.Errorf("/dev/%s: LOOP_GET_STATUS64: %w", name, err)
	}
	return loop{block: i.Rdevice != 0, dev: i.Device, ino: i.Inode, rdev: i.Rdevice, off: int64(i.Offset), size: int64(i.Sizelimit)}, nil
}

// attached is a loop device that has something below it.
type attached struct {
	*way
	device
	readOnly bool
	file     string // what it is on, as sysfs has it
}

// loops are all loop devices that have something below them. One that goes away meanwhile is none. They are another's, and so may be the file systems below them: each is asked for a
// limited time.
func (s system) loops() []attached {
	dirs, _ := filepath.Glob(filepath.Join(s.sys, "block/loop*"))
	found := make([]attached, len(dirs))
	patient := s
	s.loop = patient.loopInTime
	var asking sync.WaitGroup
	for i, dir := range dirs {
		if !exists(filepath.Join(dir, "loop")) {
			continue
		}
		dev, err := deviceNumber(dir)
		if err != nil {
			continue
		}
		asking.Go(func() { // at once: each may wait for a file system that does not answer
			w, err := s.follow(dev)
			if err != nil && len(w.devices) == 0 {
				return
			}
			found[i] = attached{
				way: w, device: w.devices[0],
				readOnly: readLine(filepath.Join(dir, "ro")) == "1",
				file:     readLine(filepath.Join(dir, "loop/backing_file")),
			}
		})
	}
	asking.Wait()
	return slices.DeleteFunc(found, func(l attached) bool { return l.way == nil })
}

// on says whether a loop device stands on bytes of e, which a file named path has. One that cannot be asked, and whose
// file cannot be looked at, is known by that name only.
func (l attached) on(e []extent, path string) bool {
	return overlap(l.extents, e) || len(l.extents) == 0 && path != "" && l.file == path
}

// taken says whether the device is open exclusively: by a file system that is mounted, a device that stands on it, or a program. Where
// that cannot be found out it is taken.
func (l attached) taken() bool {
	fd, err := openNode(l.name, l.dev, unix.O_RDONLY|unix.O_EXCL)
	if err == nil {
		unix.Close(fd)
	}
	return err != nil && err != unix.ENXIO && !os.IsNotExist(err)
}
