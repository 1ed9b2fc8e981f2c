package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/fs/uring/nullfs"
)

// mountNull starts a process that serves a null file system, on LaneFS's transport unless the column says another, and returns its PID.
func (s *system) mountNull(transport string) (int, error) {
	s.server = exec.Command("/proc/self/exe", "-serve", cmp.Or(s.argument, transport, "fuse"), s.mnt)
	s.server.Stderr = os.Stderr
	out, err := s.server.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := s.server.Start(); err != nil {
		return 0, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return 0, fmt.Errorf("the null file system: %q, %w", line, errors.Join(err, s.server.Wait()))
	}
	return s.server.Process.Pid, nil
}

// serveNull is that process.
func serveNull(transport, dir string) error {
	signal.Ignore(unix.SIGINT)
	if transport == "io_uring" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + uring.DefaultKeepers(runtime.NumCPU()))
	}
	m, err := nullfs.NewMount(dir, nullfs.New(), transport == "io_uring", slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	m.Wait()
	return nil
}
