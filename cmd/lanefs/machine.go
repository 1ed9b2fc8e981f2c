package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// machine is where /dev and /sys are; the zero value is this machine.
type machine struct{ root string }

func (m machine) path(parts ...string) string {
	return filepath.Join(append([]string{"/", m.root}, parts...)...)
}

// blockDevices are the kernel's names of all block devices.
func (m machine) blockDevices() (names []string, err error) {
	list, err := os.ReadDir(m.path("sys/class/block"))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}

// sysfs is what a file of a block device in sysfs says, empty if there is none.
func (m machine) sysfs(name string, file ...string) string {
	b, _ := os.ReadFile(m.path(append([]string{"sys/class/block", name}, file...)...))
	return strings.TrimSpace(string(b))
}

// node is where a block device of the kernel's name is.
func (m machine) node(name string) string {
	return m.path("dev", strings.ReplaceAll(name, "!", "/")) // sysfs has no slash in names
}

// named is where a device is as mount(8) says it: one of the device mapper by its name there, if that leads to it.
func (m machine) named(device string) string {
	name := m.sysfs(filepath.Base(device), "dm", "name")
	if name == "" {
		return device
	}
	var at, there unix.Stat_t
	mapped := m.path("dev/mapper", name)
	if unix.Stat(device, &at) != nil || unix.Stat(mapped, &there) != nil || at.Rdev != there.Rdev {
		return device
	}
	return mapped
}

// held says whether another device is made of it.
func (m machine) held(name string) bool {
	list, _ := os.ReadDir(m.path("sys/class/block", name, "holders"))
	return len(list) > 0
}

// suspended says whether the device mapper lets nothing through: a read would wait.
func (m machine) suspended(name string) bool { return m.sysfs(name, "dm", "suspended") == "1" }

func (m machine) isPartition(name string) bool { return m.sysfs(name, "partition") != "" }

// kernelPart is a partition that the kernel shows.
type kernelPart struct {
	name  string
	first blockdev.Bytes
}

// partitions are those that the kernel shows of a disk, by number.
func (m machine) partitions(disk string) map[int]kernelPart {
	all := map[int]kernelPart{}
	list, _ := os.ReadDir(m.path("sys/class/block", disk))
	for _, e := range list {
		number, err := strconv.Atoi(m.sysfs(disk, e.Name(), "partition"))
		start, err2 := strconv.ParseInt(m.sysfs(disk, e.Name(), "start"), 10, 54)
		if err == nil && err2 == nil {
			all[number] = kernelPart{name: e.Name(), first: blockdev.Bytes(start) * 512}
		}
	}
	return all
}

// openBlock opens a block device for reading, by the kernel's name: what has its name in /dev must be it.
func (m machine) openBlock(name string) (*readDevice, error) {
	f, err := os.OpenFile(m.node(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	d := &readDevice{file: f}
	d.Singly = blockdev.OneByOne(d.Do)
	if d.info, err = m.describe(name, f); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

func (m machine) describe(name string, f *os.File) (i blockdev.Info, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return i, err
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	if want := m.sysfs(name, "dev"); want != "" && (st.Mode&unix.S_IFMT != unix.S_IFBLK || number != want) {
		return i, fmt.Errorf("%s is not block device %s", f.Name(), want)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return i, err
	}
	block := int64(512)
	if n, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET); err == nil {
		block = int64(n)
	}
	return blockdev.Info{Name: f.Name(), ReadOnly: true, BlockSize: blockdev.Bytes(block), Blocks: blockdev.Blocks(size / block)}, nil
}

// readDevice is a block device that is only looked at: it is read through the page cache, and nobody is kept from it.
type readDevice struct {
	blockdev.Singly
	file *os.File
	info blockdev.Info
}

// Info implements blockdev.Device, and so do the others.
func (d *readDevice) Info() blockdev.Info { return d.info }

func (d *readDevice) Alloc(n int, _ ...blockdev.Use) (blockdev.Buffer, error) {
	return heapBuffer(make([]byte, n)), nil
}

func (d *readDevice) Do(reqs ...*blockdev.Request) (first error) {
	for _, r := range reqs {
		if r.Err = d.read(r); first == nil {
			first = r.Err
		}
	}
	return first
}

func (d *readDevice) read(r *blockdev.Request) error {
	if err := r.Check(d.info); err != nil {
		return err
	}
	if r.Op != blockdev.OpRead {
		return r.Fail(d.info, errors.ErrUnsupported)
	}
	off := int64(r.Off)
	for _, s := range r.Bufs {
		n, err := d.file.ReadAt(s.Bytes(), off)
		if err != nil {
			return r.Fail(d.info, err)
		}
		off += int64(n)
	}
	return nil
}

func (d *readDevice) Close() error { return d.file.Close() }

// heapBuffer is memory of Go's.
type heapBuffer []byte

func (b heapBuffer) Bytes() []byte                   { return b }
func (b heapBuffer) Len() int                        { return len(b) }
func (b heapBuffer) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: b, Off: off, N: n} }
func (b heapBuffer) Release()                        {}
