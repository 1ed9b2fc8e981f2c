package softctl

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func iovec(b []byte) unix.Iovec {
	return unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))}
}

func bytesOf(v unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }
