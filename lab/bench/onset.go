package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// onset reads 4 KiB past the page cache again and again on one CPU, where another program begins to compute meanwhile. The result is how long the longest
// read took from then on, in ms.
func onset(s *system) (d done, err error) {
	const alone, beside = 500 * time.Millisecond, 1500 * time.Millisecond
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return done{}, os.NewSyscallError("sched_getaffinity", err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &allowed)) }()
	var one unix.CPUSet
	for cpu := 0; one.Count() == 0; cpu++ {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil { // the program inherits it
		return done{}, os.NewSyscallError("sched_setaffinity", err)
	}
	fd, err := unix.Open(filepath.Join(s.mnt, "seq"), unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return done{}, &os.PathError{Op: "open", Path: "seq", Err: err}
	}
	defer unix.Close(fd)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return done{}, os.NewSyscallError("mmap", err)
	}
	defer unix.Munmap(block)
	read := func(long time.Duration) (reads int, longest time.Duration, err error) {
		for start := time.Now(); time.Since(start) < long; reads++ {
			at := time.Now()
			if _, err := unix.Pread(fd, block, rand.Int64N(512<<20/4096)*4096); err != nil {
				return 0, 0, os.NewSyscallError("pread", err)
			}
			longest = max(longest, time.Since(at))
		}
		return reads, longest, nil
	}
	n, _, err := read(alone)
	if err != nil {
		return done{}, err
	}
	hog := exec.Command("sh", "-c", "while :; do :; done")
	hog.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := hog.Start(); err != nil {
		return done{}, err
	}
	defer func() {
		_ = hog.Process.Kill()
		_ = hog.Wait() // it says that it was killed
	}()
	m, longest, err := read(beside)
	return done{value: float64(longest) / 1e6, ops: float64(n + m)}, err
}
