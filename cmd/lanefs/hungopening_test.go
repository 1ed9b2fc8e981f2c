package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// driverLimit is in the environment of a lanefs for which a driver hangs sooner than in 30 s.
const driverLimit = "LANEFS_TEST_DRIVER_LIMIT"

func limitDriver() {
	if d, err := time.ParseDuration(os.Getenv(driverLimit)); err == nil {
		openTimeout = d
	}
}

// hungCall is a place with a GPU of which a call does not return, as "NAME N" says: the stand-in's.
func hungCall(t *testing.T, call string) *place {
	t.Helper()
	p := newHIPPlace(t, "")
	p.env = append(p.env, "LANEFS_SHIM_FAIL="+p.path("fail"), driverLimit+"=5s")
	require.NoError(t, os.WriteFile(p.path("fail"), []byte(call), 0o600))
	return p
}

// imageOfFile makes a volume of so many MiB that has one file, "file", of size bytes.
func (p *place) imageOfFile(mib, size int) (img string, content []byte) {
	p.t.Helper()
	content = bytes.Repeat([]byte("to a GPU's memory "), size/18+1)[:size]
	require.NoError(p.t, os.WriteFile(filepath.Join(p.mkdir("tree"), "file"), content, 0o600))
	return p.image("image", mib, "-d", p.path("tree")), content
}

// hungCalls are calls for which a mount waits after its GPU has opened well: by which the copy engine is set up, the lanes, the pool, and what proves them.
var hungCalls = []string{
	"hipModuleLoadData 2", // the copy engine's
	"hipModuleLoadData 3", // the lanes'
	"hipStreamCreateWithFlags 3", "hipHostRegister 1", "hipHostMalloc 10", "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor 1", "hipStreamCreateWithPriority 1",
}

// TestHungOpening: a driver that hangs after its GPU has opened well is no reason to wait for ever. A mount that may choose goes on without the GPU, one that may not fails, and names the call.
func TestHungOpening(t *testing.T) {
	for _, call := range hungCalls {
		name, _, _ := strings.Cut(call, " ")
		why := "hip runtime: " + name + " does not return, after 5s"
		t.Run(call, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			t.Run("auto", func(t *testing.T) {
				t.Parallel()
				p := hungCall(t, call)
				img, mnt := p.image("image", 32), p.mkdir("mnt")
				p.within("mount", "--gpu", "auto", "-o", "vram=8M,log="+p.path("log"), img, mnt)
				require.FileExists(t, p.path("fail.hangs"), "the call is made")
				require.Contains(t, p.daemonLog("log"), why)
				require.NoError(t, writeDurably(filepath.Join(mnt, "file"), []byte("without the GPU")))
				r, err := p.stat(mnt)
				require.NoError(t, err)
				require.Equal(t, "host", r.Runtime.Name)
				p.within("umount", mnt)
				fsck(t, img)
			})
			if name != "hipModuleLoadData" { // it is the same for each call
				return
			}
			t.Run("hip", func(t *testing.T) {
				t.Parallel()
				p := hungCall(t, call)
				img, mnt := p.image("image", 32), p.mkdir("mnt")
				said := p.failsWithin("mount", "--gpu", "hip", "-o", "vram=8M", img, mnt)
				require.Contains(t, said, why)
				require.Equal(t, 1, strings.Count(said, "does not return"), "once")
				require.False(t, p.mounted(mnt))
			})
		})
	}
}

// TestHungClosing: an unmount ends though a call by which something of the GPU's is closed does not return, and the volume is whole. Nor do requests wait for one that allocates.
func TestHungClosing(t *testing.T) {
	for _, name := range []string{"hipHostFree", "hipHostUnregister", "hipStreamDestroy", "hipModuleUnload", "hipStreamQuery", "hipHostMalloc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := hungCall(t, "")
			img, mnt := p.image("image", 64), p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "vram=8M,log="+p.path("log"), img, mnt)
			content := bytes.Repeat([]byte("before and after "), 1<<16)
			require.NoError(t, writeDurably(filepath.Join(mnt, "before"), content))
			require.NoError(t, os.WriteFile(p.path("fail"), []byte(name+" 1"), 0o600))
			require.NoError(t, writeDurably(filepath.Join(mnt, "after"), content))
			p.within("umount", mnt)
			p.eventually("the mount is gone", func() bool { return !p.mounted(mnt) })
			if name != "hipHostMalloc" { // whether that is called is the buffers' matter
				require.FileExists(t, p.path("fail.hangs"), "the call is made")
			}
			require.NotContains(t, p.daemonLog("log"), "not closed cleanly")
			fsck(t, img)
			for _, file := range []string{"before", "after"} {
				tool(t, "debugfs", "-R", "dump /"+file+" "+p.path("dumped"), img)
				got, err := os.ReadFile(p.path("dumped"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, got), file)
			}
		})
	}
}

// TestHungCommands: bench, prove and the doctor end, too, and name the call.
func TestHungCommands(t *testing.T) {
	for _, c := range []struct {
		call string
		args []string // before the image's name
	}{
		{"hipModuleLoadData 1", []string{"doctor"}},
		{"hipModuleLoadData 2", []string{"bench", "--gpu", "hip", "--time", "1s"}},
		{"hipModuleLoadData 2", []string{"prove", "--gpu", "hip", "--report", "none"}},
		{"hipStreamCreateWithPriority 1", []string{"bench", "--gpu", "hip", "--time", "1s"}},
		{"hipStreamCreateWithPriority 1", []string{"prove", "--gpu", "hip", "--report", "none"}},
	} {
		t.Run(c.args[0]+", "+c.call, func(t *testing.T) {
			t.Parallel() // they wait, mostly
			p := hungCall(t, c.call)
			name, _, _ := strings.Cut(c.call, " ")
			said := ""
			if c.args[0] == "doctor" {
				said = p.within("doctor")
			} else {
				said = p.failsWithin(append(slices.Clone(c.args), p.image("image", 32))...)
			}
			require.Contains(t, said, "hip runtime: "+name+" does not return, after 5s")
		})
	}
}

// TestStopHungOpening: who does not want to wait for a driver that hangs ends the command, and has his prompt back soon. What he ends leaves nothing behind.
func TestStopHungOpening(t *testing.T) {
	for _, call := range []string{"open", "hipModuleLoadData 2"} {
		for _, args := range [][]string{{"mount"}, {"mount", "-f"}, {"bench"}, {"prove", "--report", "none"}} {
			t.Run(call+", "+strings.Join(args, " "), func(t *testing.T) {
				t.Parallel() // they wait, mostly
				p := hungCall(t, call)
				p.env = append(p.env, driverLimit+"=1m") // a busy machine takes its time to send a signal
				img, mnt := p.image("image", 32), p.mkdir("mnt")
				args := append(slices.Clone(args), "--gpu", "hip", img)
				if args[0] == "mount" {
					args = append(args, mnt)
				}
				c := p.command(args...)
				var out bytes.Buffer
				c.Stdout, c.Stderr = &out, &out
				require.NoError(t, c.Start())
				p.eventually("it hangs", func() bool {
					_, err := os.Stat(p.path("fail.hangs"))
					return err == nil
				})
				require.NoError(t, c.Process.Signal(unix.SIGINT))
				end := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
				defer end.Stop()
				if err := c.Wait(); args[0] != "prove" {
					require.Error(t, err)
				}
				require.Contains(t, out.String(), "interrupted")
				require.NotContains(t, out.String(), "does not return", "which is said when the call is given up")
				require.False(t, p.mounted(mnt))
			})
		}
	}
}
