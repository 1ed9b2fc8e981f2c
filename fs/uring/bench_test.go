package uring_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring/nullfs"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// helperEnv names what this binary does instead of testing.
const helperEnv = "LANEFS_URING_HELPER"

var helpers = map[string]func(args []string) error{"load": load}

func TestMain(m *testing.M) {
	if f := helpers[os.Getenv(helperEnv)]; f != nil {
		if err := f(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// load reads or writes a file past the page cache: path, op, block size, count, seq or rand.
func load(args []string) error {
	runtime.LockOSThread()
	size, _ := strconv.Atoi(args[2])
	count, _ := strconv.Atoi(args[3])
	fd, err := unix.Open(args[0], unix.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	buf := make([]byte, size+4096)
	buf = buf[4096-uintptr(unsafe.Pointer(&buf[0]))%4096:][:size]
	for i := range count {
		at := int64(i*size) % (512 << 20)
		if args[4] == "rand" {
			at = rand.Int64N(512<<20/int64(size)) * int64(size)
		}
		n := 0
		if args[1] == "read" {
			n, err = unix.Pread(fd, buf, at)
		} else {
			n, err = unix.Pwrite(fd, buf, at)
		}
		if err != nil || n != size {
			return fmt.Errorf("%s of %d bytes at %d: %d, %w", args[1], size, at, n, err)
		}
	}
	return nil
}

func cpuTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNull compares the transports on a file system that does nothing.
// cpu-ns/op is the CPU time of this process, the daemon.
func BenchmarkNull(b *testing.B) {
	uringtest.Enable(b)
	for _, w := range []struct {
		op, order string
		size      int
	}{{"read", "rand", 4096}, {"write", "rand", 4096}, {"read", "seq", 1 << 20}, {"write", "seq", 1 << 20}} {
		for _, transport := range []string{"devfuse", "uring"} {
			b.Run(fmt.Sprintf("%s-%s-%dk/%s", w.order, w.op, w.size/1024, transport), func(b *testing.B) {
				m := mount(b, nullfs.New(), transport != "devfuse")
				cmd := helper("load", m.Dir+"/data", w.op, strconv.Itoa(w.size), strconv.Itoa(b.N), w.order)
				b.ReportAllocs()
				b.ResetTimer()
				before := cpuTime()
				require.NoError(b, cmd.Run())
				b.StopTimer()
				b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
				m.unmount(b)
			})
		}
	}
}
