package claim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The device mapper's tables say which bytes of what a device has. Reference: Linux include/uapi/linux/dm-ioctl.h,
// Documentation/admin-guide/device-mapper.

// target is a line of a table. Offsets are bytes.
type target struct {
	off, size int64
	kind      string
	params    string
}

// part is the bytes [off, end) of a block device.
type part struct {
	dev      uint64
	off, end int64
}

// mapped is what [off, end) of a device-mapper device is made of. false: its table says so in a way that is not known
// here, or not at all.
func mapped(table func(uint64) ([]target, error), dev uint64, off, end int64) (parts []part, ok bool) {
	targets, err := table(dev)
	if err != nil || len(targets) == 0 {
		return nil, false
	}
	for _, t := range targets {
		from, to := max(off, t.off), min(end, t.off+t.size)
		if from >= to {
			continue
		}
		f := strings.Fields(t.params)
		switch {
		case t.kind == "zero" || t.kind == "error":
			continue
		case t.kind == "linear" && len(f) == 2:
		case t.kind == "crypt" && len(f) >= 5:
			f = f[3:5]
		default:
			return nil, false
		}
		below, err1 := parseNumber(f[0])
		start, err2 := strconv.ParseInt(f[1], 10, 54)
		if err1 != nil || err2 != nil {
			return nil, false
		}
		start *= 512
		parts = append(parts, part{below, start + from - t.off, start + to - t.off})
	}
	return parts, true
}

func parseNumber(s string) (uint64, error) {
	major, minor, ok := strings.Cut(s, ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no device number", s)
	}
	return unix.Mkdev(uint32(ma), uint32(mi)), nil
}

const (
	mapperHead   = 312 // bytes of struct dm_ioctl without its data
	mapperSpec   = 40  // of struct dm_target_spec
	mapperBuffer = 64 << 10
	tableStatus  = 0xc138fd0c // DM_TABLE_STATUS
	flagTable    = 1 << 4     // DM_STATUS_TABLE_FLAG: the table instead of the status
	flagFull     = 1 << 8     // DM_BUFFER_FULL_FLAG
)

// askMapper asks the device mapper for a device's table, which only root may.
func askMapper(dev uint64) ([]target, error) {
	fd, err := unix.Open("/dev/mapper/control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, mapperBuffer)
	le := binary.NativeEndian
	le.PutUint32(b[0:], 4) // version 4.0.0
	le.PutUint32(b[12:], mapperBuffer)
	le.PutUint32(b[16:], mapperHead)
	le.PutUint32(b[28:], flagTable)
	le.PutUint64(b[40:], dev)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), tableStatus, uintptr(unsafe.Pointer(&b[0]))); e != 0 {
		return nil, fmt.Errorf("DM_TABLE_STATUS: %w", e)
	}
	return parseTable(b)
}

var errTable = errors.New("the device mapper's answer cannot be read")

// parseTable reads the answer to DM_TABLE_STATUS.
func parseTable(b []byte) ([]target, error) {
	le := binary.NativeEndian
	if len(b) < mapperHead || le.Uint32(b[28:])&flagFull != 0 {
		return nil, errTable
	}
	start, n := int64(le.Uint32(b[16:])), le.Uint32(b[20:])
	if start > int64(len(b)) {
		return nil, errTable
	}
	data := b[start:]
	var all []target
	for at := int64(0); n > 0; n-- {
		if at < 0 || at+mapperSpec > int64(len(data)) {
			return nil, errTable
		}
		spec := data[at:]
		t := target{
			off: int64(le.Uint64(spec)) * 512, size: int64(le.Uint64(spec[8:])) * 512,
			kind: text(spec[24:mapperSpec]), params: text(spec[mapperSpec:]),
		}
		all = append(all, t)
		at = int64(le.Uint32(spec[20:])) // from the beginning of the data
	}
	return all, nil
}

func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
