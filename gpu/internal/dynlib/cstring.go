package dynlib

import (
	"bytes"
	"unsafe"
)

// String copies a C string, of memory that is the library's and not Go's. Null is the empty string.
func String(p uintptr) string {
	if p == 0 {
		return ""
	}
	start := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(start, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(start), n))
}

// Bytes views n bytes at p, memory of the library's.
func Bytes(p uintptr, n int64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// Buffer is the C string that a library wrote into b; without its null byte there is none.
func Buffer(b []byte) string {
	n := bytes.IndexByte(b, 0)
	return string(b[:max(n, 0)])
}
