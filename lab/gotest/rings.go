package main

import (
	"os"
	"strings"
)

// withRings has all programs that the go command links from here on, those that tests build too, mount over io_uring or over /dev/fuse
// unless they are told by -o io_uring. They are linked without what only a debugger reads (-w): tests link the program again and again.
func withRings(onOff string) string {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " '-ldflags=-w -X=github.com/lanefs/lanefs/fs.autoIOUring=" + onOff + "'")
	return "GOFLAGS=" + flags
}
