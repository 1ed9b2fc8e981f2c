package main

import (
	"os"
	"strings"
)

// withRings has all programs that the go command links from here on, those that tests build too, mount over io_uring or over /dev/fuse
// unless they are told by -o io_uring.
func withRings(onOff string) string {
	return strings.TrimSpace("GOFLAGS=" + os.Getenv("GOFLAGS") + " -ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=" + onOff)
}
