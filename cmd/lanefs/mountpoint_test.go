package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
)

func TestMounter(t *testing.T) {
	for options, want := range map[string]int{
		"rw,user_id=1000,group_id=100,default_permissions": 1000, "user_id=0": 0, "rw": -1, "rw,user_id=x": -1, "": -1,
	} {
		require.Equal(t, want, mounter(&mountinfo.Info{VFSOptions: options}), options)
	}
}

func TestResolveDir(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	require.NoError(t, os.Symlink("d", filepath.Join(dir, "l")))
	for in, want := range map[string]string{"d": "d", "l": "d", "d/": "d", "l/../d/.": "d", "absent": "absent"} {
		got, err := resolveDir(dir + "/" + in)
		require.NoError(t, err, in)
		require.Equal(t, filepath.Join(dir, want), got, in)
	}
	_, err = resolveDir("")
	require.Error(t, err)
	_, err = resolveDir(dir + "/absent/absent")
	require.ErrorContains(t, err, "no such file or directory")
}

func TestRunDirIsChecked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	require.Error(t, checkRunDir(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, checkRunDir(dir))
	require.NoError(t, os.Chmod(dir, 0o750))
	require.ErrorContains(t, checkRunDir(dir), "mode 0700")
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	require.ErrorContains(t, checkRunDir(dir), "must be a directory")
}

// TestClaimDead: a daemon that holds its lock lives, whatever its sockets say; the lock that a killed one left says which it was.
func TestClaimDead(t *testing.T) {
	dir := t.TempDir()
	base := runName(dir)
	_, s, free := claimDead(base)
	require.True(t, free, "there was no daemon")
	require.Nil(t, s)
	files, err := claim(dir)
	require.NoError(t, err)
	defer files.release(false)
	require.NoError(t, files.record(unix.Mkdev(0, 77), &mountConfig{Device: "/dev/x", Dir: dir}))
	_, _, free = claimDead(base)
	require.False(t, free)
	require.NoError(t, unix.Flock(int(files.lock.Fd()), unix.LOCK_UN)) // killed
	release, s, free := claimDead(base)
	require.True(t, free)
	require.Equal(t, &served{PID: os.Getpid(), Device: "/dev/x", Dir: dir, Number: "0:77"}, s)
	require.True(t, held(files.lock.Name()), "no daemon can begin meanwhile")
	release()
	require.False(t, held(files.lock.Name()))
}

// TestServes: a device number is given to another mount while the daemon that had it before is still ending.
func TestServes(t *testing.T) {
	s := &served{Device: "/a", Number: "0:57"}
	require.True(t, s.serves(&mountinfo.Info{FSType: "fuse.lanefs", Minor: 57, Source: "/a"}))
	require.False(t, s.serves(&mountinfo.Info{FSType: "fuse.lanefs", Minor: 57, Source: "/b"}))
	require.False(t, s.serves(&mountinfo.Info{FSType: "fuse.lanefs", Minor: 58, Source: "/a"}))
	require.False(t, s.serves(&mountinfo.Info{FSType: "fuse.other", Minor: 57, Source: "/a"}))
}

// TestNames: names that cannot be used are refused by name, and not taken for others.
func TestNames(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	odd := p.path("\xff")
	require.NoError(t, os.Mkdir(odd, 0o755))
	for _, args := range [][]string{{img, odd}, {p.image("\xff.img", 32), mnt}, {"-o", "log=" + odd + "/log", img, mnt}} {
		require.Contains(t, p.fails(append([]string{"mount"}, args...)...), "the name is not UTF-8; rename it")
	}
	c := exec.Command("sh", "-c", `mkdir gone && cd gone && rmdir ../gone && exec "$0" mount image mnt`, p.bin)
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `"image": the working directory is gone`)
	c = exec.Command("sh", "-c", `mkdir gone && cd gone && rmdir ../gone && exec "$0" mount "$1" "$2"`, p.bin, img, mnt)
	c.Env, c.Dir = p.env, p.dir
	out, err = c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.ok("umount", mnt)
}

// TestMountPointOfNoUse has mount points that creating them does not help.
func TestMountPointOfNoUse(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	long := filepath.Join(dir, strings.Repeat("a", 256), "b")
	for in, want := range map[string]string{
		filepath.Join(dir, "file", "a", "b"): "not a directory", filepath.Join(dir, "loop", "a"): "too many", long: "file name too long",
	} {
		_, err := resolveDir(in)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "create it first")
	}
	_, err := resolveDir(filepath.Join(dir, "absent", "a"))
	require.ErrorContains(t, err, "no such file or directory: create it first")
}

// TestOwnFiles has mounts that would hide the daemon's own files, or hold its socket: nothing but a kill ended them.
func TestOwnFiles(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	run := runDirs(os.Geteuid())[0]
	if os.Geteuid() != 0 {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		run = filepath.Join(dir, "lanefs")
	}
	for _, at := range []string{run, filepath.Dir(run)} {
		require.ErrorContains(t, (&mountConfig{Dir: at}).checkOwnFiles(), "the mount would hide them: name another directory", at)
	}
	mnt := filepath.Join(dir, "mnt")
	require.NoError(t, os.Mkdir(mnt, 0o700))
	require.NoError(t, os.Symlink("mnt", filepath.Join(dir, "link")))
	for path, in := range map[string]bool{"/link/sock": true, "/mnt/sock": true, "/mnt": true, "/mnt2": false, "/sock": false, "/..mnt": false, "/none/mnt/sock": false} {
		for says, c := range map[string]*mountConfig{
			"a socket on the mount itself would keep it busy: name a path outside of": {Config: mountopt.Config{Metrics: dir + path}, Dir: mnt},
			"the mount would hide it: name a path outside of":                         {Config: mountopt.Config{Log: dir + path}, Dir: mnt},
		} {
			if err := c.checkOwnFiles(); in {
				require.ErrorContains(t, err, says, path)
			} else {
				require.NoError(t, err, path)
			}
		}
	}

	p := newPlace(t)
	img, own := p.image("image", 32), p.mkdir("mnt")
	require.Contains(t, p.fails("mount", "-o", "metrics="+filepath.Join(own, "sock"), img, own), "would keep it busy")
	require.False(t, p.mounted(own))
}
