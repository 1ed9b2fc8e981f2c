package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

func (p *place) residents(dir string) residency.Stats {
	p.t.Helper()
	var s residency.Stats
	require.NoError(p.t, json.Unmarshal([]byte(p.ok("vram", "ls", "--json", dir)), &s))
	return s
}

// TestVRAM: what the command line says and does about files in device memory, and a program that has some when the mount
// goes away.
func TestVRAM(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 128), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=16M", image, dir)
	path := filepath.Join(dir, "weights")
	data := bytes.Repeat([]byte("0123456789"), 300000)
	require.NoError(t, os.WriteFile(path, data, 0o644))

	s := p.residents(dir)
	require.EqualValues(t, 16<<20, s.Size)
	require.Empty(t, s.Residents)
	require.Contains(t, p.ok("vram", "pin", path), "2.9 MiB resident and pinned")
	s = p.residents(dir)
	require.Len(t, s.Residents, 1)
	r := s.Residents[0]
	require.Equal(t, path, r.Name)
	require.EqualValues(t, len(data), r.Bytes)
	require.EqualValues(t, 4<<20, r.Memory)
	require.True(t, r.Pinned)
	require.Zero(t, r.Holders)
	require.Contains(t, p.ok("vram", "ls", dir), "current, pinned")

	f, err := os.Open(path)
	require.NoError(t, err)
	c, err := lanefs.Connect(f)
	require.NoError(t, err)
	defer c.Close()
	b, err := c.Map(f, 0, 0)
	require.NoError(t, err)
	f.Close()
	require.Equal(t, 1, p.residents(dir).Residents[0].Holders)
	require.NoError(t, os.WriteFile(path, data[:1000], 0o644))
	require.Contains(t, p.ok("vram", "ls", dir), "stale: ")
	require.Contains(t, p.ok("vram", "unpin", path), "not pinned")

	require.Contains(t, p.fails("vram", "pin", image), "not on a LaneFS mount")
	require.Contains(t, p.fails("vram", "pin", filepath.Join(dir, "none")), "no such file")
	require.Contains(t, p.fails("vram", "pin"), "want FILE")
	require.Contains(t, p.fails("vram", "ls", p.dir), "not a mount point")

	p.ok("umount", dir) // a program that has device memory does not keep the mount
	require.True(t, bytes.Equal(data, b.Bytes()))
	fsck(t, image)

	p.ok("mount", "--gpu", "host", "-o", "vram=0", image, dir)
	require.Contains(t, p.fails("vram", "ls", dir), "-o vram=SIZE")
	require.Contains(t, p.fails("vram", "pin", path), "not on a LaneFS mount")
	p.ok("umount", dir)
	require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "vram=1k", image, dir), "granule")
	require.Contains(t, p.fails("mount", "-o", "vram=much", image, dir), "want a size")
}

// TestVRAMKilled: a killed daemon leaves nothing in the next mount's way, and its clients hear of it.
func TestVRAMKilled(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", image, dir)
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o644))
	f, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	c, err := lanefs.Connect(f)
	require.NoError(t, err)
	defer c.Close()
	b, err := c.Map(f, 0, 0)
	require.NoError(t, err)
	ring, err := c.NewRing(8)
	require.NoError(t, err)
	st, err := p.stat(dir)
	require.NoError(t, err)
	p.kill(st.PID)
	// A file that was open is still one of LaneFS's: nobody may take it for another's, which goes another way.
	_, err = lanefs.Connect(f)
	require.ErrorIs(t, err, lanefs.ErrGone)
	if python, err := exec.LookPath("python3"); err == nil {
		cmd := exec.Command(python, "-c", "import lanefs\ntry: lanefs.Session.of(0)\nexcept lanefs.NotLaneFS: print('elsewhere')\nexcept ConnectionError as e: print(e.errno, e)")
		cmd.Stdin, cmd.Env = f, append(os.Environ(), "PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "daemon has gone")
	}
	f.Close()
	p.eventually("its clients hear of it", func() bool { return c.Wait(time.Minute) == nil && !b.Current() })
	require.ErrorIs(t, ring.Do(&lanefs.Request{Op: lanefs.OpSync}), lanefs.ErrGone)
	_, err = c.Pin(os.Stdin, false, -1)
	require.ErrorContains(t, err, "has gone")
	require.Equal(t, "content", string(b.Bytes()))
	_, errs, err := p.run("mount", "--gpu", "host", image, dir)
	require.NoError(t, err, errs)
	require.Contains(t, p.ok("vram", "pin", path), "7 bytes resident")
	p.ok("umount", dir)
}

// TestVRAMSockets: the socket that a killed daemon left goes with the next mount of anything; those of living ones stay.
func TestVRAMSockets(t *testing.T) {
	p := newPlace(t)
	a, b, c := p.mkdir("a"), p.mkdir("b"), p.mkdir("c")
	socket := func(dir string) bool {
		return slices.ContainsFunc(p.leftovers(dir), func(name string) bool { return filepath.Base(name) == share.SocketName(runName(dir)) })
	}
	mount := func(dir string) {
		p.ok("mount", "--gpu", "host", "-o", "vram=8M", p.image(filepath.Base(dir)+".image", 32), dir)
		require.True(t, socket(dir), "%q", p.leftovers(dir))
	}
	mount(a)
	mount(b)
	st, err := p.stat(a)
	require.NoError(t, err)
	p.kill(st.PID)
	require.True(t, socket(a))
	mount(c)
	require.False(t, socket(a), "a killed daemon's socket")
	require.Empty(t, p.residents(b).Residents)
	f, err := os.Create(filepath.Join(b, "file"))
	require.NoError(t, err)
	session, err := lanefs.Connect(f)
	require.NoError(t, err, "a living daemon's socket")
	require.NoError(t, session.Close())
	require.NoError(t, f.Close())
	p.ok("umount", c)
	p.ok("umount", b)
	_, errs, err := p.run("umount", a)
	require.NoError(t, err)
	require.Contains(t, errs, "its daemon was dead")
}

// A mount whose sharing cannot begin, here since a folder stands where its socket would, comes up without it, unless it was
// asked for.
func TestVRAMUnavailable(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	socket := shareSocket(mnt, os.Geteuid() == 0)
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(socket, "taken"), 0o700))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(socket)) })

	require.Contains(t, p.fails("mount", "-o", "vram=16M", img, mnt), socket)
	require.False(t, p.mounted(mnt))
	p.ok("mount", "-o", "log="+p.path("log"), img, mnt)
	require.Contains(t, p.daemonLog("log"), "no files as device memory")
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("as ever"), 0o600))
	p.umount(mnt)
	fsck(t, img)
}
