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

// What covers others has what they have.
func init() {
	isas["gfx950"], isas["gfx9-4-generic"] = isas["gfx942"], isas["gfx942"]
	isas["gfx11-generic"], isas["gfx12-generic"] = isas["gfx1100"], isas["gfx1201"]
}

// toolOf is LLVM's tool of the version that made the image.
func toolOf(arch, name string) string {
	if arch == "gfx950" || strings.HasSuffix(arch, "-generic") {
		return name + "-22"
	}
	return name + "-19"
}

// Both kinds of lane: a thread and a wave.
func TestStepOrdering(t *testing.T) {
	for arch, want := range isas {
		for _, kernel := range []string{StepKernel, WaveStepKernel} {
			t.Run(arch+"/"+kernel, func(t *testing.T) {
				require.NoError(t, checkStep(want, arch, assembly(t, imageOf(t, arch), arch, kernel)))
			})
		}
	}
}

// checkStep returns an error for what is missing or out of order in the instructions of a step.
func checkStep(want isa, arch string, lines []string) error {
	at := 0
	var missing error
	find := func(what, pattern string) int {
		re := regexp.MustCompile(pattern)
		for i := at; i < len(lines); i++ {
			if re.MatchString(lines[i]) {
				at = i + 1
				return i
			}
		}
		if missing == nil {
			missing = fmt.Errorf("no %s (%s) after line %d", what, pattern, at)
		}
		return 0
	}
	find("poll of DW2 and DW3", want.poll)
	if want.acquire != "" {
		find("acquire", want.acquire)
	}
	find("load of DW0 and DW1", want.read)
	// Results have a fourth quarter too, but no first one that is stored as a whole.
	first, last := -1, 0
	for first < 0 && missing == nil {
		last = find("16-byte store 3 of the SQE", fmt.Sprintf(want.sqe, offset(arch, 3)))
		first = last
		for i := 2; i >= 0 && first >= 0; i-- {
			re := regexp.MustCompile(fmt.Sprintf(want.sqe, offset(arch, i)))
			for first--; first >= 0 && !re.MatchString(lines[first]); first-- {
			}
		}
	}
	if missing != nil {
		return missing
	}
	for _, line := range lines[first:last] {
		if regexp.MustCompile(`wait|fence|membar|load|ld\.|wb`).MatchString(line) {
			return fmt.Errorf("between the stores of an SQE: %s", line)
		}
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
	if missing != nil {
		return missing
	}
	// Each release costs a trip to memory: one serves both doorbells and the results.
	for _, line := range lines[at:] {
		if regexp.MustCompile(`wbl2|global_wb|fence`).MatchString(line) {
			return fmt.Errorf("a second release after the first doorbell: %s", line)
		}
	}
	return nil
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

// No kernel keeps anything in scratch (local) memory: a lane lives in registers. (A scalar register that is spilled goes to
// a vector register, not to memory.)
func TestNoScratch(t *testing.T) {
	for arch := range isas {
		t.Run(arch, func(t *testing.T) { require.NoError(t, checkScratch(arch, notes(t, imageOf(t, arch), arch))) })
	}
}

// notes is an image's metadata about its kernels' registers and memory; in PTX that is the text itself.
func notes(t *testing.T, image []byte, arch string) string {
	t.Helper()
	if strings.HasPrefix(arch, "sm_") {
		return string(image)
	}
	return run(t, toolOf(arch, "llvm-readelf"), "--notes", imageFile(t, image, arch))
}

// checkScratch returns an error if a kernel uses scratch memory.
func checkScratch(arch, notes string) error {
	if strings.HasPrefix(arch, "sm_") {
		if found := regexp.MustCompile(`.*(\.local|_depot).*`).FindString(notes); found != "" {
			return fmt.Errorf("local memory: %s", found)
		}
		return nil
	}
	for _, key := range []string{"private_segment_fixed_size", "vgpr_spill_count"} {
		found := regexp.MustCompile(`\.`+key+`: +(\d+)`).FindAllStringSubmatch(notes, -1)
		if want := strings.Count(notes, ".kernarg_segment_size:"); len(found) != want || want == 0 {
			return fmt.Errorf("%s of %d kernels, there are %d", key, len(found), want)
		}
		for _, m := range found {
			if m[1] != "0" {
				return fmt.Errorf("%s is %s", key, m[1])
			}
		}
	}
	return nil
}

// assembly is one kernel's instructions, one per line, without comments.
func assembly(t *testing.T, image []byte, arch, kernel string) []string {
	t.Helper()
	var text string
	if strings.HasPrefix(arch, "sm_") {
		_, text, _ = strings.Cut(string(image), ".entry "+kernel+"(")
		text, _, _ = strings.Cut(text, "\n}")
	} else {
		text = run(t, toolOf(arch, "llvm-objdump"), "-d", "--disassemble-symbols="+kernel, imageFile(t, image, arch))
	}
	require.NotEmpty(t, text)
	var lines []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func imageOf(t *testing.T, arch string) []byte {
	t.Helper()
	image, err := Image(arch)
	require.NoError(t, err)
	return image
}

func imageFile(t *testing.T, image []byte, arch string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), arch)
	require.NoError(t, os.WriteFile(path, image, 0o600))
	return path
}

// run is the output of an LLVM tool; without the tool the test is skipped.
func run(t *testing.T, tool string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is missing: apt-get install llvm-%s", tool, tool[len(tool)-2:])
	}
	out, err := exec.Command(tool, args...).Output()
	require.NoError(t, err)
	return string(out)
}
