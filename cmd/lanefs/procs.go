package main

import (
	"os"
	"runtime"

	"github.com/lanefs/lanefs/fs"
)

// addProcs gives the Go scheduler as many processors more as go-fuse has threads waiting in read(2) of /dev/fuse. A waiting
// thread keeps its processor until the scheduler's monitor takes it away, so one request in a few would find no processor free
// and wait for the monitor: with two CPUs, random reads and writes of 4 KiB are 15 % slower, creates 30 %.
//
// It is called once, after the mount was made: go-fuse counts the processors then. A GOMAXPROCS of the user's stays. With requests on
// rings, where /dev/fuse has little to bring, more processors cost 2 µs of CPU time a request and bring nothing.
func addProcs(rings bool) {
	if rings || os.Getenv("GOMAXPROCS") != "" {
		return
	}
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(procs + fs.Readers(procs))
}
