package drive

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Build builds the lanefs binary at path.
func Build(path string) error {
	c := exec.Command("go", "build", "-o", path, "github.com/lanefs/lanefs/cmd/lanefs")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building lanefs: %w\n%s", err, out)
	}
	return nil
}

// Daemon is a running mount in the foreground.
type Daemon struct {
	Ended <-chan struct{} // closed when the process has ended
	cmd   *exec.Cmd
}

// Serve starts lanefs mount --foreground --gpu host with further arguments, its control socket in dir and its output in log,
// a path. It does not wait for the mount. The daemon is killed when the calling process ends.
func Serve(lanefs, dir, log string, args ...string) (*Daemon, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := exec.Command(lanefs, append([]string{"mount", "--foreground", "--gpu", "host"}, args...)...)
	c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	c.Stdout, c.Stderr = f, f
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent at the end of the thread that started the process
		defer close(ended)
		err := c.Start()
		if started <- err; err == nil {
			_ = c.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &Daemon{Ended: ended, cmd: c}, nil
}

// Kill kills the daemon and waits for its end. The mount may stay.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill()
	<-d.Ended
}
