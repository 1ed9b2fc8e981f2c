package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const childEnv = "LANEFS_SECCOMP_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestDeny runs in a child, because a filter cannot be removed.
func TestDeny(t *testing.T) {
	if _, ok := archs[runtime.GOARCH]; !ok {
		t.Skipf("SKIP: no filter for %s yet", runtime.GOARCH)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// child starts threads before it installs the filter, which must apply to them too, and tries rules of every kind.
func child() error {
	var ready, done sync.WaitGroup
	filtered := make(chan struct{})
	errs := make(chan error, 4)
	for range 4 {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-filtered
			errs <- try()
		})
	}
	ready.Wait()
	err := Deny(Filter{
		unix.SYS_SYSINFO: {},
		unix.SYS_SOCKET:  {Arg: 0, Only: []uint32{unix.AF_INET, unix.AF_INET6}},
		unix.SYS_DUP3:    {Arg: 2, Needed: unix.O_CLOEXEC},
	})
	if err != nil {
		return err
	}
	close(filtered)
	done.Wait()
	for range 4 {
		if err := <-errs; err != nil {
			return err
		}
	}
	return try()
}

func try() error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != unix.EPERM {
		return fmt.Errorf("sysinfo: %v", err)
	}
	for domain, want := range map[int]error{unix.AF_INET: unix.EPERM, unix.AF_INET6: unix.EPERM, unix.AF_UNIX: nil} {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM, 0)
		if err == nil {
			unix.Close(fd)
		}
		if err != want {
			return fmt.Errorf("socket of domain %d: %v", domain, err)
		}
	}
	if err := unix.Dup3(2, 100, unix.O_CLOEXEC); err != unix.EPERM {
		return fmt.Errorf("dup3 with a flag: %v", err)
	}
	if err := unix.Dup3(2, 100, 0); err != nil {
		return fmt.Errorf("dup3: %v", err)
	}
	return nil
}
