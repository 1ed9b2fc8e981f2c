package vfio

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (d *double) ioctl(fd int, request uintptr, arg unsafe.Pointer) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	what, known := d.files[fd]
	if !known {
		return 0, unix.EBADF
	}
	switch request {
	case ioDeviceGetInfo:
		info := (*deviceInfo)(arg)
		info.flags, info.numRegions, info.numIRQs = deviceFlagReset|deviceFlagPCI, 9, 5
		if d.noReset {
			info.flags = deviceFlagPCI
		}
	case ioGetRegionInfo:
		return 0, d.regionInfo((*regionInfo)(arg))
	case ioSetIRQs:
		set := (*irqSet)(arg)
		// The kernel keeps the eventfd itself, not its number.
		kept, err := unix.FcntlInt(uintptr(set.eventfd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		if old, ok := d.signals[set.index]; ok {
			unix.Close(old)
		}
		d.signals[set.index] = kept
	case ioDeviceFeature:
		req := (*dmaBufRequest)(arg)
		if !d.nodes[iommuNode] || req.flags != featureGet|featureDMABUF {
			return 0, unix.ENOTTY
		}
		return unix.FcntlInt(uintptr(d.device), unix.F_DUPFD_CLOEXEC, 0)

	case ioBindIOMMUFD:
		if d.files[int((*bindIOMMUFD)(arg).iommufd)] != iommuNode {
			return 0, unix.EBADF
		}
	case ioIOASAlloc:
		(*ioasAlloc)(arg).ioas = 7
	case ioAttachPT:
		d.attached = true
	case ioDetachPT:
		if !d.attached {
			d.note("detached twice")
		}
		d.attached = false
	case ioIOASRanges:
		q := (*ioasRanges)(arg)
		room := q.n
		q.n, q.alignment = uint32(len(d.usable)), 4096
		if d.pageSizes != 0 {
			q.alignment = d.pageSizes & -d.pageSizes
		}
		if room < q.n {
			return 0, unix.EMSGSIZE
		}
		copy(unsafe.Slice(*(**interval)(unsafe.Pointer(&q.allowed)), room), d.usable)
	case ioIOASMap:
		m := (*ioasMap)(arg)
		return 0, d.mapDMA(m.iova, m.length)
	case ioIOASMapFile:
		m := (*ioasMapFile)(arg)
		return 0, d.mapDMA(m.iova, m.length)
	case ioIOASUnmap:
		u := (*ioasUnmap)(arg)
		return 0, d.unmapDMA(u.iova, &u.length)

	case ioGroupGetStatus:
		(*groupStatus)(arg).flags = groupViable
	case ioGroupSetContainer:
		if d.files[int(*(*int32)(arg))] != containerNode {
			return 0, unix.EBADF
		}
		d.attached = true
	case ioGroupGetDeviceFD:
		if !d.attached || !d.typed {
			return 0, unix.EINVAL
		}
		return d.dup(d.device, deviceFile)
	case ioIOMMUGetInfo, ioMapDMA, ioUnmapDMA:
		if !d.typed {
			return 0, unix.EINVAL
		}
		return 0, d.type1Ioctl(request, arg)
	default:
		d.note("ioctl %#x on %s", request, what)
		return 0, unix.ENOTTY
	}
	return 0, nil
}

func (d *double) ioctlValue(fd int, request, _ uintptr) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case request == ioGetAPIVersion && d.files[fd] == containerNode:
		return apiVersion, nil
	case request == ioCheckExtension && d.files[fd] == containerNode:
		return 1, nil
	case request == ioSetIOMMU && d.files[fd] == containerNode:
		d.typed = true
		return 0, nil
	case request == ioGroupUnset && d.files[fd] == vfioNodes+"/3":
		if d.has(deviceFile) {
			d.note("the group left its container before its device was closed")
			return 0, unix.EBUSY
		}
		d.attached = false
		return 0, nil
	case request == ioDeviceReset && d.files[fd] == deviceFile:
		return 0, nil
	}
	d.note("ioctl %#x on %q", request, d.files[fd])
	return 0, unix.ENOTTY
}

// withList writes a capability with a list behind an info of head bytes, where it fits into argsz.
func withList(base unsafe.Pointer, argsz *uint32, head uintptr, id uint16, list [][2]uint64) (capOffset uint32) {
	size := uint32(head + unsafe.Sizeof(listCap{}) + 16*uintptr(len(list)))
	room := *argsz
	*argsz = size
	if room < size {
		return 0
	}
	b := unsafe.Slice((*byte)(unsafe.Add(base, head)), size-uint32(head))
	binary.NativeEndian.PutUint16(b, id)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(list)))
	for i, p := range list {
		binary.NativeEndian.PutUint64(b[16+16*i:], p[0])
		binary.NativeEndian.PutUint64(b[24+16*i:], p[1])
	}
	return uint32(head)
}

func (d *double) regionInfo(info *regionInfo) error {
	switch info.index {
	case regionConfig:
		info.size, info.offset = 4096, uint64(testConfig)
	case 0:
		info.size, info.offset, info.flags = testBAR, 0, regionFlagMmap
		if d.sparse != nil {
			info.flags |= regionFlagCaps
			info.capOffset = withList(unsafe.Pointer(info), &info.argsz, unsafe.Sizeof(*info), regionCapAreas, d.sparse)
		}
	default:
		return unix.EINVAL
	}
	return nil
}

func (d *double) type1Info(info *type1Info) error {
	info.flags, info.pageSizes = type1InfoPages|type1InfoCaps, d.pageSizes
	var list [][2]uint64
	for _, r := range d.usable {
		list = append(list, [2]uint64{r.First, r.Last})
	}
	info.capOffset = withList(unsafe.Pointer(info), &info.argsz, unsafe.Sizeof(*info), type1CapRanges, list)
	return nil
}

// type1Ioctl answers a request on a container.
func (d *double) type1Ioctl(request uintptr, arg unsafe.Pointer) error {
	switch request {
	case ioMapDMA:
		m := (*type1Map)(arg)
		return d.mapDMA(m.iova, m.size)
	case ioUnmapDMA:
		u := (*type1Unmap)(arg)
		return d.unmapDMA(u.iova, &u.size)
	}
	return d.type1Info((*type1Info)(arg))
}

// mapDMA and unmapDMA are what both backends do.
func (d *double) mapDMA(iova, n uint64) error {
	page := uint64(4096)
	for d.pageSizes != 0 && d.pageSizes&page == 0 {
		page <<= 1
	}
	if n == 0 || iova%page != 0 || n%page != 0 || !d.attached {
		return unix.EINVAL
	}
	inside := false
	for _, r := range d.usable {
		inside = inside || iova >= r.First && iova+n-1 <= r.Last
	}
	if !inside {
		d.note("%d bytes at %#x are not in what the IOMMU translates", n, iova)
		return unix.EINVAL
	}
	for at, m := range d.mapped {
		if iova < at+m && at < iova+n {
			return unix.EEXIST
		}
	}
	d.mapped[iova] = n
	return nil
}

func (d *double) unmapDMA(iova uint64, n *uint64) error {
	if d.mapped[iova] != *n {
		d.note("unmapping %d bytes at %#x, where %d are mapped", *n, iova, d.mapped[iova])
		return unix.ENOENT
	}
	delete(d.mapped, iova)
	return nil
}
