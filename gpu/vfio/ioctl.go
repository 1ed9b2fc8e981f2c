package vfio

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pinHint explains the errors of mapping memory that a user can do something about.
func pinHint(err error) error {
	if err == unix.ENOMEM {
		return fmt.Errorf("%w: the limit of locked memory is too small (ulimit -l, or LimitMEMLOCK in a unit)", err)
	}
	return err
}

// withCaps calls get with growing buffers until the kernel's answer fits: get puts the info struct at its start, and
// returns the size that the kernel wants.
func withCaps(first uint32, get func(b []byte) (uint32, error)) ([]byte, error) {
	size := first
	for range 4 {
		b := alignedBytes(int(size))
		want, err := get(b)
		if err != nil {
			return nil, err
		}
		if want <= size {
			return b, nil
		}
		if want > 1<<20 {
			return nil, fmt.Errorf("the kernel's answer would have %d bytes", want)
		}
		size = want
	}
	return nil, fmt.Errorf("the kernel's answer grows faster than the buffer for it")
}

// alignedBytes are bytes in which a struct of 64-bit words may lie.
func alignedBytes(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// word reads numbers as the kernel of this machine writes them.
var word = binary.NativeEndian

// pairs finds capability id in the chain that begins at offset, and reads its list. It returns nil if there is none. Capabilities lie where
// they end up: Debian 12's kernel (6.1) does not align them, later ones do.
func pairs(b []byte, offset uint32, id uint16) ([][2]uint64, error) {
	const head, pair = int(unsafe.Sizeof(listCap{})), 16
	for n := 0; offset != 0; n++ {
		at := int(offset)
		if n == 64 || at > len(b)-int(unsafe.Sizeof(capHeader{})) {
			return nil, fmt.Errorf("the kernel's chain of capabilities is broken at offset %d", at)
		}
		if word.Uint16(b[at+int(unsafe.Offsetof(capHeader{}.id)):]) != id {
			offset = word.Uint32(b[at+int(unsafe.Offsetof(capHeader{}.next)):])
			continue
		}
		if at > len(b)-head {
			return nil, fmt.Errorf("the kernel's capability %d at offset %d is cut off", id, at)
		}
		entries := word.Uint32(b[at+int(unsafe.Offsetof(listCap{}.n)):])
		if int64(entries)*int64(pair) > int64(len(b)-at-head) {
			return nil, fmt.Errorf("the kernel's capability %d at offset %d says it has %d entries, which do not fit", id, at, entries)
		}
		out := make([][2]uint64, entries)
		for i := range out {
			e := b[at+head+i*pair:]
			out[i] = [2]uint64{word.Uint64(e), word.Uint64(e[8:])}
		}
		return out, nil
	}
	return nil, nil
}
