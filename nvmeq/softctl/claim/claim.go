package claim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Claim is on the bytes of one image or block device. Its owner calls Close.
type Claim struct{ fds []int }

// InUse is the error of an image that stands on something which is in use.
type InUse struct {
	Path   string
	By     string // the user, empty if it is not known
	Remedy string
}

func (e *InUse) Error() string {
	return fmt.Sprintf("image %q is in use by %s; %s", e.Path, cmp.Or(e.By, "another LaneFS or program"),
		cmp.Or(e.Remedy, "unmount it there first"))
}

// detachTime is how long a loop device may take to be detached, or a program to look at a device.
const (
	detachTime = time.Second
	detachStep = 20 * time.Millisecond
)

// Open opens a block device for the caller alone. The error is an *InUse if it, its disk or one of its partitions is open exclusively.
func Open(path string, dev uint64, flags int) (int, error) {
	for end := time.Now().Add(detachTime); ; time.Sleep(detachStep) {
		fd, err := unix.Open(path, flags|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err != unix.EBUSY {
			return fd, err
		}
		if time.Now().After(end) {
			w, _ := kernel.follow(dev)
			return -1, kernel.inUse(path, w, device{name: filepath.Base(path), dev: dev})
		}
	}
}

// Take claims what fd has open, a regular file or a block device that was opened by Open: for writing or, with other
// readers, for reading. The error is an *InUse if some of its bytes have another user.
func Take(path string, fd int, write bool) (*Claim, error) { return kernel.take(path, fd, write) }

func (s system) take(path string, fd int, write bool) (_ *Claim, err error) {
	c := &Claim{}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	file := st.Mode&unix.S_IFMT != unix.S_IFBLK
	w := &way{sys: s}
	if file {
		at, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		w.extents = bottomOf(st.Dev, st.Ino, 0, toEnd, at)
	} else {
		if w, err = s.follow(st.Rdev); err != nil && write {
			return nil, fmt.Errorf("image %q: what it stands on cannot be seen, so another program may be writing there: %w", path, err)
		}
	}
	if err := c.alone(w, path, write); err != nil {
		return nil, err
	}
	for i, e := range w.extents {
		free, err := true, error(nil)
		switch {
		case file && i == 0:
			free, err = lock(fd, e.Off, e.End, write)
		case !e.On.Block:
			free, err = c.lockFile(e, write)
		case w.mapped: // or the kernel sees to it
			free, err = c.lockDevice(w, e, write)
		}
		if err != nil {
			return nil, fmt.Errorf("image %q: cannot lock it against a second user: %w", path, err)
		}
		if !free {
			return nil, s.inUse(path, w, device{})
		}
	}
	if swap := s.swapOn(w); swap != "" {
		return nil, asSwap(path, swap)
	}
	return c, s.noRival(w, path, write)
}

// Close lets others in. A claim that was not taken is nil.
func (c *Claim) Close() {
	if c == nil {
		return
	}
	for _, fd := range c.fds {
		unix.Close(fd)
	}
	c.fds = nil
}

// alone opens the block devices below the first that nothing else keeps others from.
func (c *Claim) alone(w *way, path string, write bool) error {
	flags := unix.O_RDONLY | unix.O_EXCL
	if write {
		flags = unix.O_RDWR | unix.O_EXCL
	}
	for i, d := range w.devices {
		if i == 0 || !d.alone {
			continue
		}
		fd, err := openNode(d.name, d.dev, flags)
		switch {
		case err == unix.EBUSY:
			return w.sys.inUse(path, w, d)
		case err == nil:
			c.fds = append(c.fds, fd)
		case write:
			return fmt.Errorf("image %q stands on %s, which cannot be kept from others: %w", path, d.path(), err)
		}
	}
	return nil
}

// lockFile locks a range of the file below a loop device.
func (c *Claim) lockFile(e extent, write bool) (bool, error) {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if write {
		flags = unix.O_RDWR | unix.O_NONBLOCK | unix.O_CLOEXEC
	}
	var st unix.Stat_t
	if unix.Stat(e.path, &st) == nil && st.Dev == e.On.Dev && st.Ino == e.On.Ino {
		fd, err := unix.Open(e.path, flags, 0)
		if err == nil && unix.Fstat(fd, &st) == nil && st.Dev == e.On.Dev && st.Ino == e.On.Ino {
			c.fds = append(c.fds, fd)
			return lock(fd, e.Off, e.End, write)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	// It has no name here. A claim that comes by its name later finds our loop device.
	seen, err := lockSeen(e, write)
	return !seen, err
}

// lockDevice locks a range of a block device that the device mapper gives to several: of its node, which is one for all
// mount namespaces whose /dev is devtmpfs.
func (c *Claim) lockDevice(w *way, e extent, write bool) (bool, error) {
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_RDWR
	}
	for _, d := range w.devices {
		if d.dev != e.On.Dev {
			continue
		}
		fd, err := openNode(d.name, d.dev, flags)
		if err != nil {
			break // then only the device mapper's own rules hold
		}
		c.fds = append(c.fds, fd)
		return lock(fd, e.Off, e.End, write)
	}
	return true, nil
}

// noRival returns nil when no loop device that is not on the way gives access to the same bytes. A claim for writing wants none that can
// be written to, and none that is open exclusively; a claim for reading wants none that is open exclusively and can be written to.
func (s system) noRival(w *way, path string, write bool) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for end := time.Now().Add(detachTime); ; time.Sleep(detachStep) {
		var rival *attached
		for _, l := range s.loops() {
			if !w.has(l.dev) && l.on(w.extents, abs) && (write && !l.readOnly || (write || !l.readOnly) && l.taken()) {
				rival = &l
				break
			}
		}
		if rival == nil {
			return nil
		}
		if time.Now().After(end) {
			return s.inUse(path, w, rival.device)
		}
	}
}

// IsInUse says whether err is an *InUse, and gives it.
func IsInUse(err error) (*InUse, bool) {
	var in *InUse
	return in, errors.As(err, &in)
}
