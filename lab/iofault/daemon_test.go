package iofault

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

// daemon is a mount of the binary.
type daemon struct {
	*drive.Daemon
	b   *outside
	log string
	end func() // kills the daemon and detaches the mount
	// detach takes the loop device away; nil: there is none.
	detach func()
}

func (d *daemon) said() string {
	text, _ := os.ReadFile(d.log)
	return string(text)
}

func (d *daemon) lanefs(args ...string) (string, error) {
	c := exec.Command(d.b.bin, args...)
	c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.b.dir)
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// serve mounts the image, in the foreground: the daemon dies with the test.
func (b *outside) serve(t *testing.T) *daemon {
	d := &daemon{b: b, log: filepath.Join(b.dir, "log")}
	device := filepath.Join(b.under.Dir(), "image")
	if b.block {
		device = d.attach(t, device)
	}
	var err error
	d.Daemon, err = drive.Serve(b.bin, b.dir, d.log, device, b.mnt())
	require.NoError(t, err)
	d.end = func() {
		d.Kill()
		_ = fs.Detach(b.mnt())
	}
	t.Cleanup(func() {
		b.under.Clear()
		d.end()
	})
	b.await(t, "the mount", d, func() bool {
		select {
		case <-d.Ended:
			require.FailNow(t, "the daemon has ended", "%s", d.said())
		default:
		}
		return strings.Contains(d.said(), "msg=mounted")
	})
	return d
}

// attach makes a loop device over the image.
func (d *daemon) attach(t *testing.T, image string) string {
	t.Helper()
	dev, detach := looptest.Attach(t, image, "-b", fmt.Sprint(d.b.layout.LBA))
	d.detach = detach
	return dev
}

// settle makes the medium work again and waits until the daemon has ended.
func (b *outside) settle(t *testing.T, d *daemon) {
	b.under.Clear()
	b.await(t, "the end of the mount", d, func() bool { m, err := fs.MountedAt(b.mnt()); return err == nil && m == nil })
	b.await(t, "the end of the daemon", d, func() bool {
		select {
		case <-d.Ended:
			return true
		default:
			return false
		}
	})
	if d.detach != nil {
		d.detach()
	}
	b.under.Forget() // as the kernel does once no process has the image open
}

func (b *outside) await(t *testing.T, what string, d *daemon, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "does not come", "%s\n%s", what, d.said())
		}
	}
}
