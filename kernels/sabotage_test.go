package kernels

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/made"
)

// TestISAChecksFail compiles the kernels with one thing wrong each and has the checks of isa_test.go find it: in make test for
// one of AMD's instruction sets and the last one, elsewhere for each.
func TestISAChecksFail(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19")
	}
	amd := []string{"gfx90a", "gfx942", "gfx1100", "gfx1201"}
	for _, c := range []struct {
		name, file, right, wrong string
		archs                    []string
		finds                    string
	}{
		{"no release", "step.h", "\t\trelease();\n\ttrace.released", "\t\t;\n\ttrace.released", append(amd, "sm_80"), "no release"},
		{"no acquire", "reap.h", "\t\t\tacquire(); /* orders the loads of DW3", "\t\t\t; /* orders the loads of DW3", []string{"gfx90a", "gfx1201"}, "no load of DW0"},
		{"cached polls", "nvme_qp.h", "return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);", "return *p;", append(amd, "sm_80"), "no "},
		// On gfx90a and gfx1100 the doorbell is a plain store anyway.
		{"a cached doorbell", "nvme_qp.h", "__scoped_atomic_store_n(p, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);", "*p = v;", []string{"gfx942", "gfx1201", "sm_80"}, "no doorbell"},
		{"volatile SQEs", "nvme_qp.h", "write(quad *entry", "write(volatile quad *entry", []string{"gfx942", "gfx1100", "sm_80"}, "the SQE|between the stores"},
		{"two releases", "step.h", "\t\tring_cq<T>(lane);", "\t\trelease(), ring_cq<T>(lane);", []string{"gfx90a", "gfx1201", "sm_80"}, "a second release"},
		{"scratch", "step.h", "\tnext_cids<T> cids;", "\tvolatile uint32_t spilled[16];\n\tspilled[*when & 15] = (uint32_t)*when;\n\tnext_cids<T> cids;", []string{"gfx942", "sm_80"}, "private_segment|local memory"},
	} {
		var archs []string
		for k, arch := range c.archs {
			if last := len(c.archs) - 1; k == last || disktest.Turn(k, last) {
				archs = append(archs, arch)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			sabotage(t, dir, StepKernel, c.file, c.right, c.wrong)
			var g errgroup.Group
			for _, arch := range archs {
				g.Go(func() error { return compile(clang, dir, arch) })
			}
			require.NoError(t, g.Wait())
			for _, arch := range archs {
				image, err := os.ReadFile(filepath.Join(dir, arch))
				require.NoError(t, err)
				err = checkStep(isas[arch], arch, assembly(t, image, arch, StepKernel))
				if c.name == "scratch" {
					err = checkScratch(arch, notes(t, image, arch))
				}
				require.Error(t, err, "%s of %s was not noticed", c.name, arch)
				require.Regexp(t, c.finds, err.Error(), arch)
			}
		})
	}
}

// TestFlowChecksFail does the same for the checks of isaflow_test.go. The last is what LLVM 19 made of the source as it was.
func TestFlowChecksFail(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19")
	}
	for _, c := range []struct{ name, kernel, file, right, wrong, arch, finds string }{
		{"no release", WaveResidentKernel, "step.h", "\t\trelease();\n\ttrace.released", "\t\t;\n\ttrace.released", "gfx1201", "before the SQE is released"},
		{"cached polls", BatchKernel, "nvme_qp.h", "return __scoped_atomic_load_n(p, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);", "return *p;", "gfx942", "old bytes in a cache"},
		{"cached polls of work", BatchKernel, "poll.h", "load_acquire(seq) : load(seq);", "load_acquire(seq) : *seq;", "gfx942", "old bytes in a cache"},
		{"cached polls of items", WaveBatchKernel, "poll.h", "w->word = load(work_at(lane, 0) + self<T>() % work_words);", "w->word = *(work_at(lane, 0) + self<T>() % work_words);", "gfx1201",
			"no poll of a whole item"},
		{"no wait", BatchKernel, "nvme_qp.h", `asm volatile("s_waitcnt vmcnt(0)" ::: "memory");`, ";", "gfx942", "before the SQE is released"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			sabotage(t, dir, c.kernel, c.file, c.right, c.wrong)
			require.NoError(t, compile(clang, dir, c.arch))
			image, err := os.ReadFile(filepath.Join(dir, c.arch))
			require.NoError(t, err)
			require.ErrorContains(t, checkFlow(c.arch, disassembly(t, image, c.arch, c.kernel)), c.finds)
		})
	}
}

// kernelLine defines a kernel. Only one stays: a build takes a tenth of the time then.
var kernelLine = regexp.MustCompile(`(?m)^LANEFS_KERNEL\d\(.*\n`)

// sabotage copies the sources to dir, with one line of one file replaced.
func sabotage(t *testing.T, dir, kernel, file, right, wrong string) {
	t.Helper()
	for _, pattern := range []string{"*.h", "*.hip"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			if name == file {
				require.Equal(t, 1, strings.Count(string(b), right), "%q in %s", right, name)
				b = []byte(strings.Replace(string(b), right, wrong, 1))
			}
			if name == "engine.hip" {
				b = kernelLine.ReplaceAllFunc(b, func(line []byte) []byte {
					if bytes.Contains(line, []byte("("+kernel+",")) {
						return line
					}
					return nil
				})
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		}
	}
}

// compile builds dir's engine.hip for one architecture, with the flags of build.sh, or has what the same was built to before.
func compile(clang, dir, arch string) error {
	args := []string{"-O3", "-std=c++17", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "--cuda-device-only"}
	if strings.HasPrefix(arch, "sm_") {
		args = append(args, "-x", "cuda", "-Xclang", "-target-feature", "-Xclang", "+ptx70", "--cuda-gpu-arch="+arch, "-nocudainc", "-nocudalib", "-S")
	} else {
		args = append(args, "-x", "hip", "--no-gpu-bundle-output", "--offload-arch="+arch, "-nogpuinc", "-nogpulib", "-mcode-object-version=5")
	}
	key, err := made.Key([]string{clang}, append(args, filepath.Join(dir, "engine.hip"))...)
	if err != nil {
		return err
	}
	from, err := made.In(key, func(out string) error {
		c := exec.Command(clang, append(args, "-o", filepath.Join(out, arch), "engine.hip")...)
		c.Dir = dir
		return c.Run()
	})
	if err != nil {
		return err
	}
	return made.Copy(filepath.Join(from, arch), filepath.Join(dir, arch))
}
