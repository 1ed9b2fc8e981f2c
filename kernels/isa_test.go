package kernels

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What each instruction set must show in the step, in this order (patterns of one line each). The compiler lays the step
// out in the order of its source, so the order of the text is that of execution on the path that does everything.
type isa struct {
	poll     string // a load that goes to memory: DW2 and DW3 of a CQE
	acquire  string // where the poll is no acquire by itself
	read     string // DW0 and DW1 of a CQE
	sqe      string // a 16-byte store at the offset %s; four follow one another
	release  string
	doorbell string
}

var isas = map[string]isa{
	"gfx90a": {`global_load_dwordx2 v\S+ v\S+ off offset:8 glc$`, `buffer_invl2`, `global_load_dwordx2 v\S+ v\S+ off glc$`,
		`global_store_dwordx4 \S+ \S+ off%s$`, `buffer_wbl2`, `global_store_dword v`},
	"gfx942": {`global_load_dwordx2 v\S+ v\S+ off offset:8 sc0 sc1$`, `buffer_inv sc0 sc1`, `global_load_dwordx2 v\S+ v\S+ off sc0 sc1$`,
		`global_store_dwordx4 \S+ \S+ off%s$`, `buffer_wbl2 sc0 sc1`, `global_store_dword v.* sc0 sc1$`},
	"gfx1100": {`global_load_b64 v\S+ v\S+ off offset:8 glc$`, `buffer_gl1_inv`, `global_load_b64 v\S+ v\S+ off glc$`,
		`global_store_b128 \S+ \S+ off%s$`, `s_waitcnt_vscnt null, 0x0`, `global_store_b32 v`},
	"gfx1201": {`global_load_b64 v\S+ v\S+ off offset:8 scope:SCOPE_SYS$`, `global_inv scope:SCOPE_SYS`, `global_load_b64 v\S+ v\S+ off scope:SCOPE_SYS$`,
		`global_store_b128 \S+ \S+ off%s$`, `global_wb scope:SCOPE_SYS`, `global_store_b32 v.* scope:SCOPE_SYS$`},
	"sm_80": {`ld\.acquire\.sys\.global\.u64`, ``, `ld\.volatile\.global\.u64`,
		`st\.global\.v4\.u32 .*\[%%rd\d+%s\]`, `fence\.acq_rel\.sys`, `st\.volatile\.global\.u32`},
}

// Both kinds of lane: a thread and a wave.
func TestStepOrdering(t *testing.T) {
	for arch, want := range isas {
		for _, kernel := range []string{StepKernel, WaveStepKernel} {
			t.Run(arch+"/"+kernel, func(t *testing.T) { checkStep(t, want, arch, kernel) })
		}
	}
}

func checkStep(t *testing.T, want isa, arch, kernel string) {
	lines := assembly(t, arch, kernel)
	at := 0
	find := func(what, pattern string) int {
		re := regexp.MustCompile(pattern)
		for i := at; i < len(lines); i++ {
			if re.MatchString(lines[i]) {
				at = i + 1
				return i
			}
		}
		t.Fatalf("no %s (%s) after line %d of %s", what, pattern, at, kernel)
		return 0
	}
	find("poll of DW2 and DW3", want.poll)
	if want.acquire != "" {
		find("acquire", want.acquire)
	}
	find("load of DW0 and DW1", want.read)
	// Only an SQE has a fourth quarter.
	last := find("16-byte store 3 of the SQE", fmt.Sprintf(want.sqe, offset(arch, 3)))
	first := last
	for i := 2; i >= 0; i-- {
		re := regexp.MustCompile(fmt.Sprintf(want.sqe, offset(arch, i)))
		for first--; !re.MatchString(lines[first]); first-- {
			require.Positive(t, first, "16-byte store %d of the SQE", i)
		}
	}
	for _, line := range lines[first:last] {
		require.NotRegexp(t, `wait|fence|membar|load|ld\.|wb`, line, "between the stores of an SQE")
	}
	if want.acquire != "" {
		for i, line := range lines { // gfx11's acquire begins like its release: look after the last one
			if want.acquire != want.release && regexp.MustCompile(want.acquire).MatchString(line) {
				at = max(at, i+1)
			}
		}
	}
	find("release", want.release)
	find("doorbell", want.doorbell)
	// Each release costs a trip to memory: one serves both doorbells and the results.
	rest := strings.Join(lines[at:], "\n")
	require.NotRegexp(t, `wbl2|global_wb|fence`, rest, "a second release after the first doorbell")
}

func offset(arch string, i int) string {
	switch {
	case i == 0:
		return ""
	case strings.HasPrefix(arch, "sm_"):
		return fmt.Sprintf(`\+%d`, 16*i)
	}
	return fmt.Sprintf(" offset:%d", 16*i)
}

// No kernel keeps anything in scratch (local) memory: a lane lives in registers.
func TestNoScratch(t *testing.T) {
	for arch := range isas {
		t.Run(arch, func(t *testing.T) {
			if strings.HasPrefix(arch, "sm_") {
				image, err := Image(arch)
				require.NoError(t, err)
				require.NotRegexp(t, `\.local|_depot`, string(image))
				return
			}
			notes := run(t, "llvm-readelf-19", "--notes", imageFile(t, arch))
			for _, key := range []string{"private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"} {
				found := regexp.MustCompile(`\.`+key+`: +(\d+)`).FindAllStringSubmatch(notes, -1)
				require.Len(t, found, 11, "%s of each kernel", key)
				for _, m := range found {
					require.Equal(t, "0", m[1], key)
				}
			}
		})
	}
}

// assembly is one kernel's instructions, one per line, without comments.
func assembly(t *testing.T, arch, kernel string) []string {
	t.Helper()
	var text string
	if strings.HasPrefix(arch, "sm_") {
		image, err := Image(arch)
		require.NoError(t, err)
		_, text, _ = strings.Cut(string(image), ".entry "+kernel+"(")
		text, _, _ = strings.Cut(text, "\n}")
	} else {
		text = run(t, "llvm-objdump-19", "-d", "--disassemble-symbols="+kernel, imageFile(t, arch))
	}
	require.NotEmpty(t, text)
	var lines []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func imageFile(t *testing.T, arch string) string {
	t.Helper()
	image, err := Image(arch)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), arch)
	require.NoError(t, os.WriteFile(path, image, 0o600))
	return path
}

// run is the output of an LLVM tool; without the tool the test is skipped.
func run(t *testing.T, tool string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is missing: apt-get install llvm-19", tool)
	}
	out, err := exec.Command(tool, args...).Output()
	require.NoError(t, err)
	return string(out)
}
