package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/bench"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// plain makes a sparse file with no volume on it.
func (p *place) plain(name string, mib int) string {
	p.t.Helper()
	path := p.path(name)
	require.NoError(p.t, os.WriteFile(path, nil, 0o600))
	require.NoError(p.t, os.Truncate(path, int64(mib)<<20))
	return path
}

// TestBench: the command measures what its flags say, writes nothing without --destroy, and finds a byte that has changed on the medium.
func TestBench(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1")
	p := newPlace(t)
	img := p.plain("image", 4)
	poke(t, img, 3000, "what was there")

	before := sum(t, img)
	svg := p.path("b.svg")
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(p.ok("bench", "--json", "--svg", svg, "--steps", "--count", "100", "--block", "4k,64k", "--lanes", "1,2",
		"--depth", "4", "--batch", "1", img)), &r))
	require.True(t, r.Simulated)
	require.Len(t, r.Runs, 4)
	for i, l := range r.Runs {
		require.Equal(t, []int64{4096, 4096, 65536, 65536}[i], l.Block)
		require.Equal(t, []int{1, 2, 1, 2}[i], l.Lanes)
		require.EqualValues(t, 100, l.Commands)
		require.EqualValues(t, 100, l.Read.Count)
		require.NotZero(t, l.Read.P9999)
		require.Nil(t, l.Write)
		require.Len(t, l.Steps, 5)
		require.Less(t, l.Steps[3].Mean, l.Elapsed)
	}
	picture, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(picture), "SIMULATED")
	require.Contains(t, p.ok("bench", "--count", "64", "--sequential", img), "SIMULATED: the controller is software")
	require.Equal(t, before, sum(t, img), "without --destroy nothing is written")

	said := p.ok("bench", "--destroy", "--reads", "0", "--sequential", "--block", "64k", "--count", "64", "--seed", "7", img)
	require.Contains(t, said, "64 blocks checked by a kernel, all right")
	require.NotEqual(t, before, sum(t, img))
	check := []string{"bench", "--verify", "--seed", "7", "--sequential", "--block", "8k", "--count", "512", img}
	require.Contains(t, p.ok(check...), "512 blocks checked by a kernel, all right")

	half := p.plain("half", 8)
	p.ok("bench", "--destroy", "--reads", "0", "--sequential", "--block", "64k", "--count", "64", "--seed", "7", half)
	check = []string{"bench", "--verify", "--seed", "7", "--sequential", "--block", "8k", "--count", "1024"}
	require.Contains(t, p.ok(append(check, half)...), "1024 blocks checked by a kernel, 512 right; the others have no word of what this seed writes there")
	check[3] = "8"
	_, said, err = p.run(append(check, half)...)
	require.Error(t, err)
	require.Contains(t, said, "no block has a word of what --seed 8 writes")
	check = []string{"bench", "--verify", "--seed", "7", "--sequential", "--block", "8k", "--count", "512", img}

	poke(t, img, 123_456, "!")
	out, errs, err := p.run(check...)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Contains(t, errs, "1 blocks were wrong and 0 commands failed")
	require.Contains(t, out, "WRONG: 1 of 512 blocks that were checked; the first: the block at LBA 240: 1 of its 1024 words of 8 bytes")
}

// TestBenchDrawing: a drawing takes the place of an older one, and of nothing else: not of the image itself, with its name given twice, nor of a disk. What was measured
// is printed also where it cannot be drawn.
func TestBenchDrawing(t *testing.T) {
	p := newPlace(t)
	img, svg := p.plain("image", 4), p.path("b.svg")
	poke(t, img, 3000, "what was there")
	before := sum(t, img)
	bench := func(svg string) []string {
		return []string{"bench", "--gpu", "host", "--count", "8", "--svg", svg, img}
	}
	for range 2 {
		p.ok(bench(svg)...)
	}
	require.Contains(t, p.fails(bench(img)...), "begins with something else than")
	require.Contains(t, p.fails(append(bench(img), "--destroy")...), "begins with something else than")
	require.Equal(t, before, sum(t, img))
	disk := p.path("disk") // its number is no device's: nothing could be written there
	if err := unix.Mknod(disk, unix.S_IFBLK|0o600, int(unix.Mkdev(0, 0))); err == nil {
		require.Contains(t, p.fails(bench(disk)...), "is a block device")
	}
	out, said, err := p.run(bench("/dev/full")...)
	require.Error(t, err)
	require.Contains(t, said, "--svg: write /dev/full: no space left")
	require.Contains(t, out, "8 commands in")
}

// TestBenchNowhere: where no drawing can be, nothing is measured, or overwritten.
func TestBenchNowhere(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 4)
	poke(t, img, 3000, "what was there")
	before := sum(t, img)
	for name, want := range map[string]string{
		p.path("nowhere/b.svg"):            `"b.svg" cannot be created in "` + p.path("nowhere") + `": no such file or directory`,
		img + "/b.svg":                     "not a directory",
		p.dir:                              "is a directory: name a file in it",
		p.path(strings.Repeat("long", 64)): "file name too long",
		"/proc/" + strconv.Itoa(os.Getpid()) + "/b.svg": "cannot be created in",
	} {
		out, said, err := p.run("bench", "--gpu", "host", "--destroy", "--reads", "0", "--count", "8", "--svg", name, img)
		require.Error(t, err, name)
		require.Contains(t, said, want)
		require.Empty(t, out)
	}
	require.Equal(t, before, sum(t, img))
	require.Contains(t, p.fails("prove", "--gpu", "host", "--time", "1ms", "--report", p.path("nowhere/r"), img), `the report: "r.txt" cannot be created in`)
}

// TestBenchDrawingWaits: a drawing that nobody takes from its FIFO is waited for until a signal ends the command.
func TestBenchDrawingWaits(t *testing.T) {
	p := newPlace(t)
	fifo := p.path("fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		c := p.command("bench", "--gpu", "host", "--count", "8", "--svg", fifo, p.plain("image", 4))
		require.NoError(t, c.Start())
		p.children = append(p.children, c)
		p.eventually("it waits for who reads the FIFO", func() bool {
			return inFIFO(c.Process.Pid)
		})
		require.NoError(t, c.Process.Signal(sig))
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err := <-ended:
			require.Error(t, err)
		case <-time.After(20 * time.Second):
			_ = c.Process.Kill()
			t.Fatalf("%v does not end it", sig)
		}
	}
}

// inFIFO says whether a thread of a process waits for a FIFO's other end.
func inFIFO(pid int) bool {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return slices.ContainsFunc(all, func(wchan string) bool {
		b, _ := os.ReadFile(wchan)
		return string(b) == "wait_for_partner" || string(b) == "fifo_open"
	})
}

// TestBenchPartition: what is written stays within the partition.
func TestBenchPartition(t *testing.T) {
	needsSfdisk(t)
	p := newPlace(t)
	img := p.plain("disk", 8)
	partitioned(t, img, "label: gpt\nsize=1M\nsize=2M\n")
	before, err := os.ReadFile(img)
	require.NoError(t, err)
	p.ok("bench", "--gpu", "host", "--destroy", "--reads", "0", "--count", "1024", "--sequential", img+"-part2") // twice, from one end to the other
	after, err := os.ReadFile(img)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before[:2<<20], after[:2<<20]), "what is before the partition")
	require.True(t, bytes.Equal(before[4<<20:], after[4<<20:]), "what is behind it")
	for at := 2 << 20; at < 4<<20; at += 4096 {
		require.NotEqual(t, before[at:at+4096], after[at:at+4096], "at %d", at)
	}
}

// TestBenchModes: every memory mode and route is measured, or the reason is there.
func TestBenchModes(t *testing.T) {
	p := newPlace(t)
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(p.ok("bench", "--gpu", "host", "--json", "--all-modes", "--count", "20", "--lanes", "1", p.plain("image", 4))), &r))
	require.Len(t, r.Runs, len(ways()))
	for i, w := range ways() {
		l := r.Runs[i]
		require.EqualValues(t, w.mode, l.MemoryMode)
		require.Equal(t, w.route.String(), l.Doorbell)
		require.True(t, l.Refused != "" || l.Commands == 20, "%+v", l)
	}
	require.Empty(t, r.Runs[0].Refused)
}

// TestBenchInterrupted: Ctrl-C ends a measurement without end, and what was measured is printed. One that has measured nothing yet, on a busy machine, gets more time.
func TestBenchInterrupted(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 4)
	measured := func(after time.Duration) (r bench.Report) {
		c := p.command("bench", "--gpu", "host", "--json", "--time", "0", img)
		var out bytes.Buffer
		c.Stdout = &out
		require.NoError(t, c.Start())
		p.children = append(p.children, c)
		p.eventually("the program has the device", func() bool {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Process.Pid))
			return slices.ContainsFunc(fds, func(fd string) bool {
				to, _ := os.Readlink(fd)
				return to == img
			})
		})
		require.Contains(t, p.fails("bench", "--gpu", "host", "--destroy", "--reads", "0", "--count", "1", img), "in use")
		time.Sleep(after)
		require.NoError(t, c.Process.Signal(syscall.SIGINT))
		require.NoError(t, c.Wait())
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		require.True(t, r.Interrupted)
		return r
	}
	after := 200 * time.Millisecond
	r := measured(after)
	for ; after < time.Minute && (len(r.Runs) == 0 || r.Runs[0].Commands == 0); after *= 2 {
		r = measured(after)
	}
	require.Len(t, r.Runs, 1)
	require.NotZero(t, r.Runs[0].Commands)
}

// TestBenchRefused: a device that is somebody's, and arguments that make no sense.
func TestBenchRefused(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 4)
	soft, err := softctl.Open(img, softctl.Options{})
	require.NoError(t, err)
	require.Contains(t, p.fails("bench", "--gpu", "host", img), "in use")
	require.Contains(t, p.fails("bench", "--gpu", "host", "--destroy", img), "in use")
	require.NoError(t, soft.Close())
	for want, args := range map[string][]string{
		"nothing is written without --destroy":  {"--reads", "99"},
		"want a percentage":                     {"--reads", "101"},
		"say by which --seed":                   {"--verify"},
		"what an earlier run wrote: say by":     {"--verify", "--seed", "0"},
		"leave --memory-mode and --doorbell":    {"--all-modes", "--memory-mode", "1"},
		"--block 4x: \"4x\": want a number of":  {"--block", "4x"},
		"--lanes 0: \"0\": want numbers from 1": {"--lanes", "0"},
		"--depth 1,x: \"x\": want numbers":      {"--depth", "1,x"},
		"want a multiple of the namespace's":    {"--block", "100"},
		"has 4194304 bytes":                     {"--size", "1G"},
		"want multiples of the namespace's":     {"--offset", "100"},
		"want 0, or more":                       {"--queue", "1"},
	} {
		require.Contains(t, p.fails(append(append([]string{"bench", "--gpu", "host"}, args...), img)...), want)
	}
	require.Contains(t, p.fails("bench", p.dir), "is a directory")
	require.Contains(t, p.fails("bench"), "want DEVICE")
	require.Contains(t, p.fails("bench", "--gpu", "host", img+","+p.plain("second", 4)), "is an array: name one of its members")
}

// TestBenchStopsShort: what was measured before an error is printed, and the error follows.
func TestBenchStopsShort(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 4)
	args := []string{"bench", "--gpu", "host", "--count", "100", "--block", "4k,128m", "--size", "4m", img}
	out, said, err := p.run(args...)
	require.Error(t, err)
	require.Contains(t, said, "is smaller than a block of 128 MiB")
	require.Contains(t, out, "100 commands in")
	out, _, err = p.run(append(args, "--json")...)
	require.Error(t, err)
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Runs, 1)
	require.EqualValues(t, 100, r.Runs[0].Commands)
	require.True(t, r.Interrupted)
}

// TestBenchBlockDevice: a block device that is open exclusively, as one that is mounted is, is refused; else it is measured, with fio beside it.
func TestBenchBlockDevice(t *testing.T) {
	p := newPlace(t)
	dev := loopOver(t, p.plain("image", 4))
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.Contains(t, p.fails("bench", "--gpu", "host", dev), "in use")
	require.Contains(t, p.fails("bench", "--gpu", "host", "--destroy", dev), "in use")
	require.NoError(t, unix.Close(fd))
	require.Contains(t, p.ok("bench", "--gpu", "host", "--destroy", "--reads", "50", "--count", "200", dev), "checked by a kernel, all right")
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("SKIPPED: needs fio: make deps installs it")
	}
	said := p.ok("bench", "--gpu", "host", "--fio", "--count", "200", "--lanes", "1", dev)
	require.Regexp(t, `fio-3\S+ on the kernel's driver, io_uring, O_DIRECT: random reads of 4 KiB, 1 job, depth 32\n  [0-9]+ commands/s`, said)
}

// TestBenchGPU: resident lanes of a GPU's runtime, waves and threads, are measured like those of the CPU, with their steps, and the GPU's
// kernels find a byte that has changed.
func TestBenchGPU(t *testing.T) {
	p := newHIPPlace(t, "")
	img := p.plain("image", 4)
	for _, lane := range []string{"wave", "thread"} {
		var r bench.Report
		require.NoError(t, json.Unmarshal([]byte(p.ok("bench", "--json", "--gpu", "hip", "--lane", lane, "--destroy", "--reads", "50", "--steps", "--count", "300",
			"--lanes", "2", "--depth", "8", "--seed", "3", img)), &r))
		require.Equal(t, "hip", r.Runtime)
		require.Len(t, r.Runs, 1)
		l := r.Runs[0]
		require.EqualValues(t, 300, l.Commands)
		require.Greater(t, l.Checked, l.Read.Count)
		require.Zero(t, l.Wrong, l.FirstWrong)
		require.Len(t, l.Steps, 5)
		for _, s := range l.Steps {
			require.EqualValues(t, 300, s.Count)
		}
		require.Greater(t, l.Steps[3].Mean, l.Steps[1].Mean, "most of a command is waiting")
	}
	poke(t, img, 1<<20, "!")
	_, errs, err := p.run("bench", "--gpu", "hip", "--verify", "--seed", "3", "--sequential", "--count", "1024", img)
	require.Error(t, err)
	require.Contains(t, errs, "1 blocks were wrong")
}
