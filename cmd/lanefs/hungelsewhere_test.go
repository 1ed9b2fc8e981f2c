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
	start, c := time.Now(), p.command(args...)
	c.WaitDelay = time.Second
	stop := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	defer stop.Stop()
	out, err := c.CombinedOutput()
	require.NoError(p.t, err, "lanefs %q:\n%s", args, out)
	p.t.Logf("lanefs %q: %v", args, time.Since(start).Round(time.Millisecond))
	return string(out)
}

// TestHungElsewhere: a file system that does not answer holds up those that have to do with it. A device that is mounted from there, a loop device that stands on it and
// a program that has a file of it open are no concern of other mounts.
func TestHungElsewhere(t *testing.T) {
	p := newPlace(t)
	from, at := p.mkdir("from"), p.mkdir("passing")
	p.image("from/image", 32)
	p.image("from/label", 32, "-L", "hung")
	t.Cleanup(func() { fs.Detach(at) })
	server, says, _ := p.child(bePassing, at+"\n"+from)
	require.Equal(t, "ready", says())
	img, mnt, there := p.image("image", 32, "-L", "here"), p.mkdir("mnt"), p.mkdir("there")
	p.ok("mount", filepath.Join(at, "image"), there)
	user := exec.Command("sleep", "1000")
	f, err := os.Open(filepath.Join(at, "label"))
	require.NoError(t, err)
	user.Stdin = f
	require.NoError(t, user.Start())
	f.Close()
	t.Cleanup(func() { user.Process.Kill(); user.Wait() })
	root := os.Geteuid() == 0
	if root {
		dev, _ := looptest.Attach(t, filepath.Join(at, "label"))
		require.Contains(t, p.fails("mount", filepath.Join(at, "label"), mnt), dev) // as long as it answers
	}
	p.stop(server.Pid)

	p.within("check", img)
	p.within("mount", img, mnt)
	p.within("stat", mnt)
	p.within("doctor")
	second := p.mkdir("second")
	p.within("mount", img, second)
	p.within("umount", second)
	p.within("umount", mnt)
	if root {
		dev, _ := looptest.Attach(t, img)
		p.within("mount", dev, mnt)
		require.Contains(t, p.fails("mount", img, mnt), dev)
		p.within("umount", mnt)
		uuid := tool(t, "blkid", "-p", "-s", "UUID", "-o", "value", img)
		p.within("mount", "UUID="+strings.TrimSpace(uuid), mnt)
		p.within("umount", mnt)
	}
	require.NoError(t, unix.Kill(server.Pid, unix.SIGCONT))
	p.ok("umount", there)
	fsck(t, filepath.Join(from, "image"))
}
