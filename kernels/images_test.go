package kernels

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestImages(t *testing.T) {
	for _, arch := range []string{"gfx90a", "gfx942", "gfx942:sramecc+:xnack-", "gfx1100", "gfx1201", "gfx950", "gfx9-4-generic", "gfx941",
		"gfx1101", "gfx1151", "gfx1200", "sm_80", "sm_90", "sm_90a", "sm_120"} {
		image, err := Image(arch)
		require.NoError(t, err)
		require.NotEmpty(t, image)
	}
	own, err := Image("gfx1201")
	require.NoError(t, err)
	family, err := Image("gfx1200")
	require.NoError(t, err)
	generic, err := Image("gfx12-generic")
	require.NoError(t, err)
	require.True(t, bytes.Equal(family, generic))
	require.False(t, bytes.Equal(own, generic), "its own comes before its family's")
	for _, arch := range []string{"gfx1030", "gfx1199", "gfx12000", "sm_70", "", "sm_", "host", "riscv64"} {
		_, err := Image(arch)
		require.ErrorContains(t, err, "there are")
	}
}

// images.sum names the sources and images that belong together, so a source that was edited without making the images again is
// noticed without clang too. That the sources do make these images is what build.sh check shows.
func TestImagesBelongToSources(t *testing.T) {
	sums, err := os.ReadFile("images.sum")
	require.NoError(t, err)
	want := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	got := map[string]string{}
	for _, pattern := range []string{"build.sh", "*.h", "*.hip", "kerneltest/*.hip", "traced/*.hip", "images/*", "traced/images/*", "kerneltest/images/*", "../sdk/c/images/*"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			got[name] = fmt.Sprintf("%x", sha256.Sum256(b))
		}
	}
	for name := range got {
		if got[name] != want[name] {
			t.Errorf("%s is not what images.sum says: run go generate ./kernels and commit what it makes", name)
		}
	}
	for name := range want {
		if got[name] == "" {
			t.Errorf("%s is missing: run go generate ./kernels and commit what it makes", name)
		}
	}
}
