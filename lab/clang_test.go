package lab

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBuildsWithGoAlone: whoever requires the module, or builds the program, needs neither clang nor a C compiler: nothing but go is on PATH.
func TestBuildsWithGoAlone(t *testing.T) {
	bin, err := exec.LookPath("go")
	require.NoError(t, err)
	bin, err = filepath.EvalSymlinks(bin)
	require.NoError(t, err)
	only := t.TempDir()
	require.NoError(t, exec.Command("ln", "-s", bin, filepath.Join(only, "go")).Run())
	cmd := exec.Command(filepath.Join(only, "go"), "build", "-o", t.TempDir(), "./cmd/lanefs", "./sdk/go/...")
	cmd.Dir = ".."
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "PATH="+only)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
