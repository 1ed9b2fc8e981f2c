package main

import (
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// withRings has all programs that the go command links from here on, those that tests build too, mount over io_uring or over /dev/fuse
// unless they are told by -o io_uring.
func withRings(onOff string) string {
	return strings.TrimSpace("GOFLAGS=" + os.Getenv("GOFLAGS") + " -ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=" + onOff)
}

// parameter is the fuse module's switch. Without it there is no FUSE over io_uring.
var parameter = "/sys/module/fuse/parameters/enable_uring"

// offerRings switches FUSE over io_uring on. What it returns puts the switch back; a signal does so, too.
func offerRings() (back func(), err error) {
	back = func() {}
	before, err := os.ReadFile(parameter)
	if err != nil || strings.TrimSpace(string(before)) == "Y" {
		return back, err
	}
	if err := os.WriteFile(parameter, []byte("Y"), 0); err != nil {
		return back, err
	}
	back = func() { _ = os.WriteFile(parameter, before, 0) }
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, unix.SIGTERM)
	go func() {
		<-stop
		back()
		os.Exit(1)
	}()
	return back, nil
}
