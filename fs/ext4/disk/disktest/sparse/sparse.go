// Package sparse copies images. Tests do so by the hundred, and a process for each costs more than the copy.
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
	size := st.Size()
	b := make([]byte, min(size, piece))
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		} else if err != nil {
			return &os.PathError{Op: "SEEK_DATA", Path: src.Name(), Err: err}
		}
		end, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return &os.PathError{Op: "SEEK_HOLE", Path: src.Name(), Err: err}
		}
		for at = data; at < min(end, size); {
			n, err := src.ReadAt(b[:min(int64(len(b)), min(end, size)-at)], at)
			if n == 0 {
				return fmt.Errorf("%s at %d of %d: %w", src.Name(), at, size, shortRead(err))
			}
			if err := writeData(dst, b[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
	}
	return dst.Truncate(size)
}

func shortRead(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// writeData writes the pages of b that are not all zeroes, those that follow each other at once.
func writeData(dst *os.File, b []byte, at int64) error {
	for i := 0; i < len(b); {
		n := min(page, len(b)-i)
		if bytes.Equal(b[i:i+n], zeroPage[:n]) {
			i += n
			continue
		}
		from := i
		for i < len(b) {
			n := min(page, len(b)-i)
			if bytes.Equal(b[i:i+n], zeroPage[:n]) {
				break
			}
			i += n
		}
		if _, err := dst.WriteAt(b[from:i], at+int64(from)); err != nil {
			return err
		}
	}
	return nil
}
