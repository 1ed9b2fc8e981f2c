package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/fs"
)

// The test binary is also a file system that passes a directory on, the value being where it is mounted and that directory, a line each. The kernel asks
// it for every name anew.
const bePassing = "LANEFS_TEST_PASSING"

func servePassing(dirs string) error {
	at, from, _ := strings.Cut(dirs, "\n")
	root, err := gofs.NewLoopbackRoot(from)
	if err != nil {
		return err
	}
	none := time.Duration(0)
	s, err := gofs.Mount(at, root, &gofs.Options{EntryTimeout: &none, AttrTimeout: &none, MountOptions: fuse.MountOptions{DirectMount: true, AllowOther: os.Geteuid() == 0}})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	s.Wait()
	return nil
}

// within is ok, but for a command that waits for ever.
func (p *place) within(args ...string) string {
	p.t.Helper()
	out, err := p.ends(args...)
	require.NoError(p.t, err, "lanefs %q:\n%s", args, out)
	return out
}

// failsWithin is fails, likewise.
func (p *place) failsWithin(args ...string) string {
	p.t.Helper()
	out, err := p.ends(args...)
	var exit *exec.ExitError
	require.ErrorAs(p.t, err, &exit, "lanefs %q succeeded:\n%s", args, out)
	require.Equal(p.t, exitFailed, exit.ExitCode(), "lanefs %q:\n%s", args, out)
	return out
}

// ends runs lanefs to its end, or ends it after two minutes: then its error is that of a signal.
func (p *place) ends(args ...string) (out string, err error) {
	p.t.Helper()
	start, c := time.Now(), p.command(args...)
	c.WaitDelay = time.Second
	stop := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	defer stop.Stop()
	said, err := c.CombinedOutput()
	p.t.Logf("lanefs %q: %v", args, time.Since(start).Round(time.Millisecond))
	return string(said), err
}

// TestHungElsewhere: a file system that does not answer holds up those that have to do with it. A device that is mounted from there and
// a program that has a file of it open are no concern of other mounts.
func TestHungElsewhere(t *testing.T) {
	p := newPlace(t)
	h := p.hang(false)
	defer h.goOn()
	p.within("check", h.image)
	p.within("mount", h.image, h.dir)
	p.within("stat", h.dir)
	p.within("doctor")
	p.within("mount", h.image, h.second)
	p.within("umount", h.second)
	p.within("umount", h.dir)
}

// TestHungLoop: nor is a loop device that stands on it.
func TestHungLoop(t *testing.T) {
	if os.Getenv("LANEFS_HUNG_LOOP") == "" {
		t.Skip("SKIPPED: every mount of this machine takes 10 s longer meanwhile: make fault-test")
	}
	p := newPlace(t)
	h := p.hang(true)
	defer h.goOn()
	p.within("check", h.image)
	p.within("mount", h.image, h.dir)
	p.within("umount", h.dir)
	dev, _ := looptest.Attach(t, h.image)
	p.within("mount", dev, h.dir)
	require.Contains(t, p.fails("mount", h.image, h.dir), dev)
	p.within("umount", h.dir)
	uuid := tool(t, "blkid", "-p", "-s", "UUID", "-o", "value", h.image)
	p.within("mount", "UUID="+strings.TrimSpace(uuid), h.dir)
	p.within("umount", h.dir)
}

// hung is an image, and directories to mount it at, on a machine on which another file system does not answer.
type hung struct {
	image, dir, second string
	goOn               func() // has it answer again, and ends the mount from there
}

// hang has a file system not answer from which a device is mounted and a program has a file open, and with loop a loop device is attached.
func (p *place) hang(loop bool) hung {
	p.t.Helper()
	from, at, there := p.mkdir("from"), p.mkdir("passing"), p.mkdir("there")
	p.image("from/image", 32)
	p.image("from/other", 32)
	h := hung{image: p.image("image", 32), dir: p.mkdir("mnt"), second: p.mkdir("second")}
	p.t.Cleanup(func() { fs.Detach(at) })
	server, says, _ := p.child(bePassing, at+"\n"+from)
	require.Equal(p.t, "ready", says())
	p.ok("mount", filepath.Join(at, "image"), there)
	user := exec.Command("sleep", "1000")
	f, err := os.Open(filepath.Join(at, "other"))
	require.NoError(p.t, err)
	user.Stdin = f
	require.NoError(p.t, user.Start())
	f.Close()
	p.t.Cleanup(func() { user.Process.Kill(); user.Wait() })
	if loop {
		dev, _ := looptest.Attach(p.t, filepath.Join(at, "other"))
		require.Contains(p.t, p.fails("mount", filepath.Join(at, "other"), h.dir), dev) // as long as it answers
	}
	p.stop(server.Pid)
	h.goOn = func() {
		require.NoError(p.t, unix.Kill(server.Pid, unix.SIGCONT))
		p.ok("umount", there)
		fsck(p.t, filepath.Join(from, "image"))
	}
	return h
}
