// Package sparse reads and copies images, of which most is holes. Tests copy them by the hundred, and a process for each costs more than the copy.
package sparse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// piece is how much of a file one read takes, page what is left out of the copy where it is all zeroes: bytes.
const (
	piece = 128 << 10
	page  = 4096
)

var zeroPage [page]byte

// Copy makes to a copy of from, with holes where from has holes or pages of zeroes, as cp --sparse=always does. It makes the file, or replaces what is in it.
func Copy(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := copyData(src, dst); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}

// copyData copies what is not zero, and gives dst the length of src.
func copyData(src, dst *os.File) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, min(st.Size(), piece))
	err = Data(src, st.Size(), func(off, n int64) error {
		for end := off + n; off < end; {
			n, err := src.ReadAt(b[:min(piece, end-off)], off)
			if n == 0 {
				return fmt.Errorf("%s at %d of %d: %w", src.Name(), off, st.Size(), shortRead(err))
			}
			if err := writeData(dst, b[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dst.Truncate(st.Size())
}

// Data calls each for every range of f below size that is no hole.
func Data(f *os.File, size int64, each func(off, n int64) error) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "SEEK_DATA", Path: f.Name(), Err: err}
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return &os.PathError{Op: "SEEK_HOLE", Path: f.Name(), Err: err}
		}
		if data >= size {
			return nil
		}
		if err := each(data, min(at, size)-data); err != nil {
			return err
		}
	}
	return nil
}

func shortRead(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// writeData writes the pages of b that are not all zeroes, those that follow each other at once.
func writeData(dst *os.File, b []byte, at int64) error {
	for len(b) > 0 {
		n, zero := alike(b)
		if !zero {
			if _, err := dst.WriteAt(b[:n], at); err != nil {
				return err
			}
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// alike says how many of the first bytes are pages that are all zeroes, or, if the first is not, pages that are not.
func alike(b []byte) (n int, zero bool) {
	for n < len(b) {
		end := min(n+page, len(b))
		is := bytes.Equal(b[n:end], zeroPage[:end-n])
		if n > 0 && is != zero {
			break
		}
		n, zero = end, is
	}
	return n, zero
}
