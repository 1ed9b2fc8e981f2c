package vm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	nvme0   = "0000:00:03.0"
	ivshmem = "0000:00:04.0"
	shared0 = "0000:00:05.0"
	shared1 = "0000:00:05.1"
	several = "0000:00:0a.0"
	second  = "0000:00:0b.0"
	port1   = "0000:00:07.0"
)

// TestMain skips everything outside the guest.
func TestMain(m *testing.M) {
	if os.Getenv("LANEFS_LAB_GUEST") == "" {
		fmt.Println("=== RUN   lab") // as go test -v says it
		fmt.Println("    lab_test.go:0: these tests take a machine's devices away; they run in the virtual machine of `make lab` only")
		fmt.Println("--- SKIP: lab (0.00s)")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	commandTimeout = 10 * time.Minute // everything is slow under software emulation
	worthSaying    = 20 * time.Second // a command that takes longer is printed
)

// run executes a command and returns what it printed.
func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	began := time.Now()
	select {
	case err := <-done:
		if d := time.Since(began); d > worthSaying {
			fmt.Printf("    %s %s took %v\n", name, strings.Join(args, " "), d.Round(time.Second))
		}
		if err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
		}
		return out.String(), err
	case <-time.After(commandTimeout):
		cmd.Process.Signal(unix.SIGQUIT) // a Go program prints its stacks, and so do the daemons in their logs
		exec.Command("killall", "-QUIT", "lanefs").Run()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			cmd.Process.Kill()
		}
		return "", fmt.Errorf("%s %s: no end within %v: %s", name, strings.Join(args, " "), commandTimeout, out.String())
	}
}

// must is run; an error fails the test.
func must(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := run(name, args...)
	require.NoError(t, err)
	return out
}

// dd copies a file, with the size and pieces of args, and returns when the copy is durable.
func dd(from, to string, args ...string) error {
	_, err := run("dd", append([]string{"if=" + from, "of=" + to, "conv=fsync"}, args...)...)
	return err
}

// lanefs runs the command line under test.
func lanefs(t testing.TB, args ...string) string {
	t.Helper()
	return must(t, "lanefs", args...)
}

// lanefsJSON runs lanefs and decodes the JSON that it prints into v. What it says besides, on standard error, is logged: emulation can be so slow that
// commands time out and are sent again.
func lanefsJSON(t testing.TB, v any, args ...string) {
	t.Helper()
	out := lanefs(t, args...)
	for !strings.HasPrefix(out, "{") && !strings.HasPrefix(out, "[") {
		said, rest, more := strings.Cut(out, "\n")
		require.True(t, more, "lanefs %v prints no JSON", args)
		t.Log(said)
		out = rest
	}
	require.NoError(t, json.NewDecoder(strings.NewReader(out)).Decode(v), "lanefs %v prints %s", args, out)
}

// refused runs lanefs, which must fail, and returns what it printed.
func refused(t testing.TB, args ...string) string {
	t.Helper()
	out, err := run("lanefs", args...)
	require.Error(t, err, "lanefs %v succeeded: %s", args, out)
	require.NotContains(t, err.Error(), "no end within")
	require.NotContains(t, out, "goroutine ", "a panic is not an answer")
	return out // without the arguments, of which tests must not find words
}

// driver of a function, empty for none.
func driver(addr string) string {
	to, err := os.Readlink("/sys/bus/pci/devices/" + addr + "/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// bound binds a function to vfio-pci for the length of the test.
func bound(t testing.TB, addr string) {
	t.Helper()
	lanefs(t, "bind", addr)
	require.Equal(t, "vfio-pci", driver(addr))
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/bus/pci/devices/" + addr); err != nil {
			return // unplugged
		}
		if out, err := run("lanefs", "unbind", addr); err != nil {
			t.Errorf("unbind: %v %s", err, out)
		}
	})
}

// onPC skips the test on another machine.
func onPC(t testing.TB, why string) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip(why)
	}
}

// disk waits for the kernel's block device of a function's first namespace.
func disk(t testing.TB, addr string) string {
	t.Helper()
	return blockDevice(t, addr, 1)
}

var onePath = regexp.MustCompile(`c[0-9]+n`)

// blockDevice waits for the kernel's block device of a namespace, whose name need not have the namespace's number.
func blockDevice(t testing.TB, addr string, nsid int) (dev string) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, _ := filepath.Glob("/sys/bus/pci/devices/" + addr + "/nvme/nvme*/nvme*n*/nsid")
		for _, f := range found {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == strconv.Itoa(nsid) {
				// With several paths nvme0c1n1 is one of them, and nvme0n1 the device.
				dev = "/dev/" + onePath.ReplaceAllString(filepath.Base(filepath.Dir(f)), "n")
				_, err := os.Stat(dev)
				return err == nil
			}
		}
		return false
	}, 3*time.Minute, 50*time.Millisecond, "the kernel's driver shows no namespace %d of %s", nsid, addr)
	return dev
}

// mkfs makes a volume through the kernel's driver.
func mkfs(t testing.TB, dev string, args ...string) {
	t.Helper()
	must(t, "mkfs.ext4", append(append([]string{"-q", "-F", "-O", "metadata_csum_seed,orphan_file"}, args...), dev)...)
}

// kernelMount mounts with the kernel's ext4 while f runs.
func kernelMount(t testing.TB, dev string, f func(dir string)) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount(dev, dir, "ext4", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	f(dir)
}

// mount mounts with LaneFS; the mount ends with the test, if not before.
func mount(t testing.TB, dev string, args ...string) string {
	t.Helper()
	dir, _ := mountLogged(t, dev, args...)
	return dir
}

// mountLogged is mount, with the path of the daemon's log.
func mountLogged(t testing.TB, dev string, args ...string) (dir, log string) {
	t.Helper()
	dir, log = t.TempDir(), filepath.Join(t.TempDir(), "log")
	t.Cleanup(func() {
		b, _ := os.ReadFile(log)
		if said := complaints(b); t.Failed() {
			t.Logf("the daemon's log:\n%s", b)
		} else if said != "" {
			t.Logf("the daemon's complaints:\n%s", said)
		}
	})
	lanefs(t, append(append([]string{"mount", "-o", "log=" + log}, args...), dev, dir)...)
	t.Cleanup(func() {
		var a, b unix.Stat_t
		if unix.Stat(dir, &a) == nil && unix.Stat(filepath.Dir(dir), &b) == nil && a.Dev == b.Dev {
			return
		}
		if _, err := run("lanefs", "umount", dir); err != nil {
			t.Log(err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir, log
}

// complaints returns the warnings and errors of a log. Tests may expect some; in others they tell why the test was slow.
func complaints(log []byte) string {
	var said strings.Builder
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			said.WriteString(line)
		}
	}
	return said.String()
}

func fsck(t testing.TB, dev string) {
	t.Helper()
	must(t, "e2fsck", "-fn", dev)
}

// kernelLog returns the end of the kernel's log.
func kernelLog() string {
	out, _ := run("dmesg")
	return out[max(0, len(out)-2000):]
}
