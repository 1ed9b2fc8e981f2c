package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/controller"
)

// rungs are those of a report, by name.
func (r *proofReport) rungs() map[string]*proofRung {
	all := map[string]*proofRung{}
	for _, g := range r.Rungs {
		all[g.Area+": "+g.Name] = g
	}
	return all
}

// readProof reads the JSON of a report.
func readProof(t *testing.T, name string) *proofReport {
	t.Helper()
	b, err := os.ReadFile(name + ".json")
	require.NoError(t, err)
	var r proofReport
	require.NoError(t, json.Unmarshal(b, &r))
	return &r
}

// TestProveInUse: a device that something has is told at the first rung, which is what fails.
func TestProveInUse(t *testing.T) {
	p := newPlace(t)
	img := p.image("image", 32)
	dir := p.mkdir("m")
	p.ok("mount", "--gpu", "host", img, dir)
	for _, args := range [][]string{nil, {"--destroy"}} {
		out, _, err := p.run(append([]string{"prove", "--gpu", "host", "--report", "none", img}, args...)...)
		require.Error(t, err)
		require.Contains(t, out, "FAILED      it is there, and free for user space: image")
		require.Contains(t, out, "is in use by the LaneFS mount of")
		require.Contains(t, out, "1 rungs held, 1 failed, 0 were impossible here")
	}
	p.ok("umount", dir)
}

// TestProveReport: a report takes the place of an older one, not of the image.
func TestProveReport(t *testing.T) {
	p := newPlace(t)
	img := p.image("drive.txt", 8)
	before := sum(t, img)
	require.Contains(t, p.fails("prove", "--gpu", "host", "--time", "1ms", "--report", p.path("drive"), img), "begins with something else than")
	require.Equal(t, before, sum(t, img))
	for range 2 {
		p.ok("prove", "--gpu", "host", "--time", "1ms", "--report", p.path("report"), img)
	}
}

// TestProve: an image's controller is climbed, nothing is written, and the report has no serial number; with scratch blocks they are written
// and put back.
func TestProve(t *testing.T) {
	p := newPlace(t)
	img, name := p.image("image", 32), p.path("report")
	before := sum(t, img)
	said := p.ok("prove", "--gpu", "host", "--time", "10ms", "--report", name, img)
	require.Contains(t, said, "SIMULATED")
	require.Contains(t, said, "held        the controller refuses an invalid LBA: LBA Out of Range")
	require.Contains(t, said, " 0 failed")
	require.Equal(t, before, sum(t, img), "nothing is written unless it is allowed")
	r := readProof(t, name)
	require.True(t, r.Simulated)
	require.Equal(t, "none", r.Writes)
	require.Zero(t, r.Failed)
	require.Equal(t, len(r.Rungs), r.Held+r.Impossible)
	require.Len(t, r.Throughput, 3)
	require.Equal(t, rungImpossible, r.rungs()["the GPU: its runtime opens, and runs a kernel"].Outcome)
	require.Equal(t, rungImpossible, r.rungs()["writes, lanes on the CPU: patterns that kernels write and check"].Outcome)

	var id identity
	require.NoError(t, json.Unmarshal([]byte(p.ok("identify", "--json", img)), &id))
	require.NotEmpty(t, id.Serial)
	for _, end := range []string{".txt", ".json"} {
		b, err := os.ReadFile(name + end)
		require.NoError(t, err)
		require.NotContains(t, string(b), id.Serial, "an identifier in %s", end)
		require.NotContains(t, string(b), id.SUBNQN)
	}

	p.ok("prove", "--gpu", "host", "--time", "1ms", "--serial", "--scratch", "4000-4999", "--report", name, img)
	r = readProof(t, name)
	require.Equal(t, id.Serial, r.Controller.Serial)
	require.Contains(t, r.rungs()["writes, lanes on the CPU: patterns that kernels write and check"].Said, "125 blocks of 4 KiB written, flushed, read and found right")
	require.Equal(t, rungHeld, r.rungs()["writes, lanes on the CPU: what was there is put back"].Outcome)
	require.Equal(t, before, sum(t, img))

	p.ok("prove", "--gpu", "host", "--time", "1ms", "--destroy", "--report", "none", img)
	require.NotEqual(t, before, sum(t, img))

	for want, args := range map[string][]string{
		"want two logical blocks":    {"--scratch", "7"},
		"want two logical blocks, ":  {"--scratch", "0-18446744073709551615"},
		"give one of them":           {"--scratch", "7-8", "--destroy"},
		"want more than 0":           {"--time", "0"},
		`"x=y"`:                      {"--gpu", "x=y"},
		"no PCI function 0000:ff:1f": {"--report", "none", "0000:ff:1f.7"},
	} {
		args = append([]string{"prove"}, args...)
		if want[0] != 'n' {
			args = append(args, img)
		}
		out, errs, err := p.run(args...)
		require.Error(t, err, args)
		require.Contains(t, out+errs, want)
	}
}

// TestProveFails: on a drive that does not read, each rung that reads fails and says so, the others hold, and the climb goes on to its end.
func TestProveFails(t *testing.T) {
	p := newPlace(t)
	img, name := p.plain("image", 8), p.path("report")
	dev := loopOver(t, img)
	require.NoError(t, os.Truncate(img, 0)) // the loop device stays as large
	out, errs, err := p.run("prove", "--gpu", "host", "--time", "1ms", "--report", name, dev)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s%s", out, errs)
	require.Equal(t, exitFailed, exit.ExitCode())
	r := readProof(t, name)
	for rung, fails := range map[string]bool{"the device: Identify, and a namespace that can be used": false, "lanes on the CPU: queues and data in host memory": true,
		"lanes on the CPU: doorbells over the bridge": true, "lanes on the CPU: the controller refuses an invalid LBA": true,
		"lanes on the CPU: a reset of the controller, and the same bytes after": true} {
		g := r.rungs()[rung]
		require.NotNil(t, g, rung)
		if !fails {
			require.Equal(t, rungHeld, g.Outcome, "%s: %s", rung, g.Said)
			continue
		}
		require.Equal(t, rungFailed, g.Outcome, "%s: %s", rung, g.Said)
		require.Contains(t, g.Said, "Unrecovered Read Error", rung)
	}
	require.GreaterOrEqual(t, r.Failed, 4)
	require.Contains(t, out, "when the GPU fails", "the last area")
}

// TestProveGPU: the rungs of a GPU hold on the stand-in for ROCm; a GPU that runs no kernel, though it was named, is a failure, which does not end the climb.
func TestProveGPU(t *testing.T) {
	p := newHIPPlace(t, "")
	img, name := p.plain("image", 8), p.path("report")
	const (
		iomem  = "the GPU: lanes on the GPU, queues and data in host memory, doorbells by iomem"
		bridge = "the GPU: lanes on the GPU, queues and data in host memory, doorbells by bridge"
		opens  = "the GPU: its runtime opens, and runs a kernel"
		moves  = "when the GPU fails: the lanes move to the CPU, and read the same bytes"
	)
	p.ok("prove", "--time", "10ms", "--scratch", "100-1000", "--report", name, img)
	r := readProof(t, name)
	require.Zero(t, r.Failed)
	for _, rung := range []string{opens, iomem, bridge, moves, "writes, lanes on the GPU: patterns that kernels write and check",
		"queues and data in device memory: the GPU's memory: memory mode 11: submission queues, completion queues and data"} {
		require.NotNil(t, r.rungs()[rung], rung)
		require.Equal(t, rungHeld, r.rungs()[rung].Outcome, "%s: %s", rung, r.rungs()[rung].Said)
	}
	require.Len(t, r.Throughput, 6)

	fail := p.path("fail")
	p.env = append(p.env, "LANEFS_SHIM_FAIL="+fail)
	require.NoError(t, os.WriteFile(fail, []byte("refuse"), 0o600))
	out, errs, err := p.run("prove", "--gpu", "hip", "--time", "1ms", "--report", name, img)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, exitFailed, exit.ExitCode())
	require.Contains(t, errs, "1 rungs failed")
	require.Contains(t, out, "FAILED      its runtime opens, and runs a kernel")
	r = readProof(t, name)
	require.Equal(t, 1, r.Failed)
	require.Len(t, r.Throughput, 3, "what the CPU can do is still tried")
}

// TestProveInterrupted: Ctrl-C in the middle of what writes to scratch blocks ends the command when they are as they were.
func TestProveInterrupted(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 128)
	poke(t, img, 100<<20, "what was there")
	before := sum(t, img)
	c := p.command("prove", "--gpu", "host", "--report", "none", "--scratch", "0-262143", img)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	p.children = append(p.children, c)
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.HasPrefix(lines.Text(), "held        what is there is kept") { // next are the patterns
			require.NoError(t, c.Process.Signal(syscall.SIGINT))
		}
	}
	require.Error(t, c.Wait(), "what was not tried is not proven")
	require.Contains(t, strings.Join(said, "\n"), "came after the interruption")
	require.Equal(t, before, sum(t, img), "%s", strings.Join(said, "\n"))
	require.Contains(t, strings.Join(said, "\n"), "held        what was there is put back")
}

// TestProvePutsBack: neither a second Ctrl-C, nor the end of the session, nor an output that nobody reads any more keeps scratch blocks from being put back.
func TestProvePutsBack(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 64)
	const text = "what was there"
	poke(t, img, 4096, text)
	written := func() bool { // the patterns have come so far
		f, err := os.Open(img)
		require.NoError(t, err)
		defer f.Close()
		b := make([]byte, len(text))
		_, err = f.ReadAt(b, 4096)
		require.NoError(t, err)
		return string(b) != text
	}
	signals := func(all ...syscall.Signal) func(*exec.Cmd, io.Closer) {
		return func(c *exec.Cmd, _ io.Closer) {
			for end := time.Now().Add(time.Minute); !written() && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			for _, s := range all {
				require.NoError(t, c.Process.Signal(s))
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	for name, do := range map[string]func(*exec.Cmd, io.Closer){
		"twice Ctrl-C":          signals(syscall.SIGINT, syscall.SIGINT, syscall.SIGINT),
		"timeout(1)":            signals(syscall.SIGTERM, syscall.SIGTERM),
		"the session ends":      signals(syscall.SIGHUP),
		"SIGQUIT":               signals(syscall.SIGQUIT),
		"nobody reads any more": func(_ *exec.Cmd, out io.Closer) { require.NoError(t, out.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			poke(t, img, 4096, text)
			before := sum(t, img)
			c := p.command("prove", "--gpu", "host", "--time", "1ms", "--report", "none", "--scratch", "0-32767", img)
			out, err := c.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, c.Start())
			p.children = append(p.children, c)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "held        what is there is kept") { // next are the patterns
					do(c, out)
				}
			}
			require.Error(t, c.Wait())
			require.Equal(t, before, sum(t, img))
		})
	}
}

// sayer calls a function for each line that is written.
type sayer func(line string)

func (f sayer) Write(b []byte) (int, error) { f(string(b)); return len(b), nil }

// TestProveLost: what cannot be put back, on a device that has become read-only, is in a file that was not there, and the blocks are written no more.
func TestProveLost(t *testing.T) {
	p := newPlace(t)
	img := p.plain("image", 8)
	const text = "what was there"
	poke(t, img, 4096, text)
	want := sum(t, img)
	dev := loopOver(t, img)
	t.Chdir(p.dir)
	for _, gone := range []bool{false, true} { // the current directory
		if gone {
			dir := t.TempDir()
			t.Chdir(dir)
			require.NoError(t, os.Remove(dir))
		}
		pr := &prover{o: &proveOptions{scratch: "0-16383", time: time.Millisecond}, log: slog.New(slog.DiscardHandler), dev: benchDevice{arg: dev, out: io.Discard},
			r: &proofReport{When: time.Now()}, modes: map[controller.MemoryMode]bool{}}
		require.NoError(t, pr.parseScratch(pr.o.scratch))
		require.NoError(t, pr.dev.parse([]string{"gpu=host"}, false))
		var said strings.Builder
		pr.out = sayer(func(line string) {
			if said.WriteString(line); strings.Contains(line, "patterns that kernels") && !pr.lost {
				tool(t, "blockdev", "--setro", dev)
			}
		})
		require.True(t, pr.device(), "%s", &said)
		err := pr.writes("writes", "host")
		require.ErrorContains(t, err, "could not be put back: it is in ", "%s", &said)
		_, kept, _ := strings.Cut(err.Error(), "it is in ")
		t.Cleanup(func() { os.Remove(kept) })
		require.Equal(t, gone, filepath.IsAbs(kept), kept)
		require.Equal(t, want, sum(t, kept), "all blocks were scratch")
		require.NotEqual(t, want, sum(t, img))
		require.NoError(t, pr.writes("writes again", "host"))
		require.Contains(t, said.String(), "nothing more is written to them")
		require.NoError(t, pr.dev.close())
		tool(t, "blockdev", "--setrw", dev)
		tool(t, "dd", "if="+kept, "of="+dev, "conv=notrunc,fsync", "status=none")
		require.Equal(t, want, sum(t, img))
	}
}

func TestWithoutSecrets(t *testing.T) {
	require.Equal(t, "drive (left out) of 0000:01:00.0, 0", withoutSecrets("drive S5GXNX0T of 0000:01:00.0, 0", []string{"S5GXNX0T", "00000000", "0", ""}))
}

// TestKeepScratch: what could not be put back takes no other's file, also when the machine's clock tells the same time again.
func TestKeepScratch(t *testing.T) {
	t.Chdir(t.TempDir())
	when := time.Date(1970, 1, 1, 0, 0, 20, 0, time.UTC)
	for _, saved := range []string{"first", "second"} {
		name, err := keepScratch([]byte(saved), when)
		require.NoError(t, err)
		require.Contains(t, name, "lanefs-scratch-19700101-000020")
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, saved, string(got))
	}
	all, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, all, 2)
}
