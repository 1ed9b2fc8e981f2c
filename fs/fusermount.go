package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fusermount runs fusermount3, which mounts and unmounts for ordinary users.
func fusermount(args ...string) error {
	bin, err := findFusermount()
	if err != nil {
		return err
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		if text := bytes.TrimSpace(out); bytes.Contains(text, []byte("open /etc/mtab: No such file")) {
			return fmt.Errorf("%s (some containers' images lack it; root can make it: ln -s /proc/self/mounts /etc/mtab)", text)
		} else if len(text) > 0 {
			return fmt.Errorf("%s", text)
		}
		return err
	}
	return nil
}

// findFusermount looks for fusermount3 in PATH, then where it is installed: mount(8) and umount(8) start the helpers of ordinary users
// without a PATH, and a daemon keeps what it was started with.
func findFusermount() (string, error) {
	for _, name := range []string{"fusermount3", "/usr/local/bin/fusermount3", "/usr/bin/fusermount3", "/bin/fusermount3"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin, nil
		}
	}
	return "", errors.New("fusermount3 is not installed: install fuse3")
}

// fusermountSays is a line of fusermount3, which begins with the path by which it was called.
var fusermountSays = regexp.MustCompile(`^\S*fusermount3?: (.*\S)`)

// captureStderr keeps what this process and its children write to standard error until said is called, which gives the reason of
// fusermount3 in it, empty if there is none: go-fuse only has its exit status. All of it goes where it would have gone.
func captureStderr() (said func() string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	old, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.Dup3(int(w.Fd()), 2, 0)
	}
	w.Close()
	if err != nil {
		r.Close()
		return nil, os.NewSyscallError("dup", err)
	}
	terminal := os.NewFile(uintptr(old), "stderr")
	kept := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, io.TeeReader(r, heedless{terminal}))
		r.Close()
		kept <- b.String()
	}()
	return func() string {
		_ = unix.Dup3(int(terminal.Fd()), 2, 0) // the pipe's last writer is gone, unless a child lives
		_ = r.SetReadDeadline(time.Now().Add(captureTime))
		text := <-kept
		terminal.Close()
		reason := "" // it is said last, as fusermount3 ends then
		for line := range strings.Lines(text) {
			if m := fusermountSays.FindStringSubmatch(line); m != nil {
				reason = "fusermount3: " + m[1]
			}
		}
		return reason
	}, nil
}

// heedless is a writer whose errors are no reason to stop.
type heedless struct{ io.Writer }

func (h heedless) Write(p []byte) (int, error) {
	_, _ = h.Writer.Write(p)
	return len(p), nil
}

// captureTime bounds the wait for the end of what was written, in case a child that lives on has standard error too.
const captureTime = time.Second
