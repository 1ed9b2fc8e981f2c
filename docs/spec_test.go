package docs

import (
	"bufio"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/kernels"
)

type row struct {
	offset, size int
	name         string
}

var (
	heading = regexp.MustCompile(`^### (lanefs_\w+), (\d+) bytes$`)
	cells   = regexp.MustCompile(`^\| (\d+) \| (\d+) \| (\w+) \|`)
)

// tables reads the layouts from SPEC.md.
func tables(t *testing.T) (rows map[string][]row, sizes map[string]int) {
	f, err := os.Open("SPEC.md")
	require.NoError(t, err)
	defer f.Close()
	rows, sizes = map[string][]row{}, map[string]int{}
	current := ""
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			current = ""
		}
		if m := heading.FindStringSubmatch(sc.Text()); m != nil {
			current = m[1]
			sizes[current], _ = strconv.Atoi(m[2])
		}
		if m := cells.FindStringSubmatch(sc.Text()); m != nil && current != "" {
			off, _ := strconv.Atoi(m[1])
			size, _ := strconv.Atoi(m[2])
			rows[current] = append(rows[current], row{off, size, strings.ReplaceAll(m[3], "_", "")})
		}
	}
	return rows, sizes
}

// TestSpecTables compares SPEC.md with the Go mirror of layout.h, which is itself compared with the C one.
func TestSpecTables(t *testing.T) {
	got, sizes := tables(t)
	want := map[string]reflect.Type{
		"lanefs_work": reflect.TypeFor[kernels.Work](), "lanefs_result": reflect.TypeFor[kernels.Result](),
		"lanefs_cid": reflect.TypeFor[kernels.CID](), "lanefs_control": reflect.TypeFor[kernels.Control](),
		"lanefs_status": reflect.TypeFor[kernels.Status](), "lanefs_counters": reflect.TypeFor[kernels.Counters](),
		"lanefs_lane": reflect.TypeFor[kernels.Lane](), "lanefs_trace": reflect.TypeFor[kernels.Trace](),
	}
	require.Len(t, got, len(want))
	for name, typ := range want {
		require.Equal(t, int(typ.Size()), sizes[name], name)
		var fields []row
		for i := range typ.NumField() {
			if f := typ.Field(i); f.Name != "_" {
				fields = append(fields, row{int(f.Offset), int(f.Type.Size()), strings.ToLower(f.Name)})
			}
		}
		require.Equal(t, fields, got[name], name)
	}
}

// TestSpecKernels looks for every entry point.
func TestSpecKernels(t *testing.T) {
	b, err := os.ReadFile("SPEC.md")
	require.NoError(t, err)
	for _, k := range []string{kernels.ResetKernel, kernels.StepKernel, kernels.BatchKernel, kernels.ResidentKernel, kernels.RingKernel, kernels.PRPKernel} {
		require.Contains(t, string(b), "| `"+k+"` |")
	}
}

// TestLinks looks for every file that a document points at.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, doc := range []string{"../README.md", "DESIGN.md", "SPEC.md", "HARDWARE.md", "PERFORMANCE.md"} {
		b, err := os.ReadFile(doc)
		require.NoError(t, err)
		dir := ""
		if strings.HasPrefix(doc, "../") {
			dir = "../"
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			_, err := os.Stat(dir + m[1])
			require.NoError(t, err, "%s points at %s", doc, m[1])
		}
	}
}
