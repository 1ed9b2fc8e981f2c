// Package image makes image files of ext4 volumes for campaigns. It has e2fsck check and repair them, and the kernel mount them over loop
// devices.
package image

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// Make makes an image file of size (mke2fs notation, "64M") with mkfs.ext4 and the given options.
func Make(path, size string, args ...string) error {
	_, err := drive.Run("mkfs.ext4", append(append([]string{"-q", "-F"}, args...), path, size)...)
	return err
}

// Path returns a name by which child processes can open what f has open, also if f is memory without a name. It is good as
// long as f is open.
func Path(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

var (
	freeBlocks = regexp.MustCompile(`(?m)^  Free blocks: (.*)$`)
	freeRange  = regexp.MustCompile(`(\d+)(?:-(\d+))?`)
)

// FillFree writes to the free blocks of an image: fill gets a block's number and its bytes, and reports whether to write it.
// Campaigns put a pattern there, so that a file that shows what it never wrote is found out.
func FillFree(path string, blockSize int, fill func(n int64, b []byte) bool) error {
	out, err := drive.Run("dumpe2fs", path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	filled := 0
	b := make([]byte, blockSize)
	for _, line := range freeBlocks.FindAllStringSubmatch(out, -1) {
		for _, r := range freeRange.FindAllStringSubmatch(line[1], -1) {
			from, _ := strconv.ParseInt(r[1], 10, 64)
			to := from
			if r[2] != "" {
				to, _ = strconv.ParseInt(r[2], 10, 64)
			}
			for n := from; n <= to; n++ {
				if !fill(n, b) {
					continue
				}
				if _, err := f.WriteAt(b, n*int64(blockSize)); err != nil {
					return errors.Join(err, f.Close())
				}
				filled++
			}
		}
	}
	if filled == 0 {
		err = fmt.Errorf("dumpe2fs names no free blocks of a new volume:\n%s", out)
	}
	return errors.Join(err, f.Close())
}
