package kernels

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lanefs/lanefs/"

// Packages that launch kernels, or say which there are. No other package imports this one.
var launches = []string{"cmd/lanefs", "cmd/lanefs/internal/bench", "cmd/lanefs/internal/doctor", "gpu/copyengine", "gpu/gputest", "gpu/gputest/detached", "kernels/kerneltest", "kernels/traced", "nvmeq/engine"}

// Packages that build without this one, however indirectly: what other people's programs import, the runtimes, the codecs. Those
// of the second list are tested without it too.
var (
	builtAlone  = []string{"./sdk/go", "./gpu", "./gpu/cuda", "./gpu/hip", "./gpu/host", "./nvmeq/nvme"}
	testedAlone = []string{"./fs/ext4/...", "./blockdev", "./nvmeq/nvme", "./fs/share/wire"}
)

func TestImporters(t *testing.T) {
	for _, line := range goList(t, "-f", `{{if ne .Name ""}}{{.ImportPath}} {{join .Imports " "}}{{end}}`, "./...") {
		name, imports, _ := strings.Cut(line, " ")
		if slices.Contains(strings.Fields(imports), module+"kernels") {
			require.Contains(t, launches, strings.TrimPrefix(name, module), "%s imports kernels", name)
		}
	}
	for _, name := range builtAlone {
		require.NotContains(t, goList(t, "-deps", name), module+"kernels", name)
	}
	for _, name := range testedAlone {
		require.NotContains(t, goList(t, "-deps", "-test", name), module+"kernels", name)
	}
}

// goList is the output of go list in the module's root, line by line.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is missing")
	}
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir = ".."
	out, err := c.Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
