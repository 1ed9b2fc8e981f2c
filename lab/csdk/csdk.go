// Package csdk makes the C library and cuFile's interface for tests, in a folder below build that stays: the compilers take ten seconds, which
// the tests of another package need not, nor the next run. Make makes again what has changed. Whoever wants other flags makes by himself.
package csdk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// C makes sdk/c, and returns the folder with liblanefs.a and liblanefs.so.1.0.0. Others read there too: nobody may write.
func C() (dir string, err error) {
	err = locked(func(root, build string) error {
		dir = filepath.Join(build, "c") // where sdk/cufile makes it
		return run(filepath.Join(root, "sdk/c"), dir, "all")
	})
	return dir, err
}

// CuFile installs sdk/cufile; args are variables of its Makefile, such as PREFIX and DESTDIR.
func CuFile(args ...string) error {
	return locked(func(root, build string) error {
		return run(filepath.Join(root, "sdk/cufile"), build, append(args, "install")...)
	})
}

func run(sources, build string, args ...string) error {
	out, err := exec.Command("make", append([]string{"-s", "-C", sources, "BUILD=" + build}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make %q in %s: %w: %s", args, sources, err, out)
	}
	return nil
}

// locked calls do with the checkout's folder and that for what is made, while no other process makes there.
func locked(do func(root, build string) error) error {
	root, err := checkout()
	if err != nil {
		return err
	}
	build := filepath.Join(root, "build", "test-sdk")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(build, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	return do(root, build)
}

// checkout is the folder of go.mod above the package whose tests run.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("csdk: no go.mod above the working directory")
		}
	}
}
