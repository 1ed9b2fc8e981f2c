package vfio

import "structs"

// linux/iommufd.h. Each struct's first member is its size.

// iommuIO is _IO(IOMMUFD_TYPE, IOMMUFD_CMD_BASE).
const iommuIO = uintptr(';')<<8 + 0x80

const (
	ioIOASAlloc     = iommuIO + 1
	ioIOASRanges    = iommuIO + 4
	ioIOASMap       = iommuIO + 5
	ioIOASUnmap     = iommuIO + 6
	ioIOASMapFile   = iommuIO + 15
	mapFixed        = 1 << 0
	mapWriteable    = 1 << 1
	mapReadable     = 1 << 2
	mapFixedRW      = mapFixed | mapWriteable | mapReadable
	ioasRangesLimit = 4096 // usable ranges: more than this no machine has
)

type ioasAlloc struct {
	_                 structs.HostLayout
	size, flags, ioas uint32
}

type ioasRanges struct {
	_                  structs.HostLayout
	size, ioas, n, pad uint32
	allowed, alignment uint64
}

type ioasMap struct {
	_                      structs.HostLayout
	size, flags, ioas, pad uint32
	userVA, length, iova   uint64
}

type ioasUnmap struct {
	_            structs.HostLayout
	size, ioas   uint32
	iova, length uint64
}

type ioasMapFile struct {
	_                   structs.HostLayout
	size, flags, ioas   uint32
	fd                  int32
	start, length, iova uint64
}
