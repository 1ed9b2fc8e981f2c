package main

import (
	"os"
	"runtime"

	"github.com/lanefs/lanefs/fs"
)

// mostProcs bounds what addProcs adds: each processor costs the garbage collector.
const mostProcs = 32

// addProcs gives the Go scheduler as many processors more as there are threads that wait for requests: rings' threads, or, if there are none,
// go-fuse's in read(2) of /dev/fuse. A waiting thread keeps its processor until the scheduler's monitor takes it away, so what it has just
// made ready to run would find no processor free and wait for the monitor: with two CPUs and /dev/fuse, random reads and writes
// of 4 KiB are 15 % slower, creates 30 %; with rings four programs' random reads are 20 to 40 % slower, eight programs' fsyncs a third.
//
// It is called once, after the mount was made: go-fuse counts the processors then. A GOMAXPROCS of the user's stays.
func addProcs(rings int) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	procs := runtime.GOMAXPROCS(0)
	more := fs.Readers(procs)
	if rings > 0 {
		more = min(rings, mostProcs)
	}
	runtime.GOMAXPROCS(procs + more)
}
