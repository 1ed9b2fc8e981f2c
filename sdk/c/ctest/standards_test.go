package ctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/lab/made"
)

// TestStandards: each header that programs include compiles by itself, and twice, in C and in C++ of old standards and new ones, without a warning.
func TestStandards(t *testing.T) {
	compilers := map[string][]string{"gcc": {"c99", "c11", "gnu17"}, "g++": {"c++98", "c++11", "c++20"}}
	for tool := range compilers {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install --no-install-recommends gcc g++", tool)
		}
	}
	headers := []string{"sdk/c/lanefs.h", "sdk/cufile/cufile.h", "sdk/cufile/hipfile.h"}
	var flags []string
	if out, err := exec.Command("mpicc", "--showme:incdirs").Output(); err == nil {
		headers = append(headers, "sdk/c/lanefs_mpi.h")
		for _, dir := range strings.Fields(string(out)) {
			flags = append(flags, "-isystem"+dir) // whose warnings are not ours
		}
	}
	sources := t.TempDir()
	for i, name := range headers {
		header, err := filepath.Abs(filepath.Join("../../..", name))
		require.NoError(t, err)
		include := fmt.Sprintf("#include %q\n", header)
		for compiler, standards := range compilers {
			source := filepath.Join(sources, fmt.Sprintf("%d.%s", i, map[string]string{"gcc": "c", "g++": "cc"}[compiler]))
			require.NoError(t, os.WriteFile(source, []byte(include+include), 0o644)) // twice, too
			for _, standard := range standards {
				args := append([]string{"-std=" + standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source}, flags...)
				accepts(t, []string{header}, compiler, args...)
			}
		}
	}
}

// accepts has a compiler read sources, which include the files in also, unless it has taken the same before.
func accepts(t *testing.T, also []string, compiler string, args ...string) {
	t.Helper()
	key, err := made.Key([]string{compiler}, append(append([]string{"accepted"}, args...), also...)...)
	require.NoError(t, err)
	_, err = made.In(key, func(string) error {
		if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %q: %w: %s", compiler, args, err, out)
		}
		return nil
	})
	require.NoError(t, err)
}

// TestNarrow: the header refuses programs with addresses of 32 bits. The linker would only say that it does not find the library.
func TestNarrow(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil || runtime.GOARCH != "amd64" {
		t.Skip("needs gcc, on amd64")
	}
	for _, narrow := range []string{"-m32", "-mx32"} {
		out, err := exec.Command("gcc", narrow, "-ffreestanding", "-fsyntax-only", "../lanefs.h").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "addresses of 64 bits", narrow)
	}
}

// TestWarnings: no compiler that is here has a warning of the libraries' sources. Those who install them may have yet another one, so the
// Makefiles do not ask for that.
func TestWarnings(t *testing.T) {
	compilers := 0
	for _, cc := range []string{"gcc", "clang-19", "clang-22"} {
		if _, err := exec.LookPath(cc); err != nil {
			continue
		}
		compilers++
		for _, sdk := range []string{"../../c", "../../cufile"} {
			sources, err := filepath.Glob(sdk + "/*.c")
			require.NoError(t, err)
			sources = slices.DeleteFunc(sources, func(s string) bool { // which have standards of their own
				return strings.HasPrefix(filepath.Base(s), "test") || filepath.Base(s) == "example.c"
			})
			require.Greater(t, len(sources), 10)
			accepts(t, nil, cc, append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I../../c", "-I" + sdk}, sources...)...)
		}
	}
	if compilers == 0 {
		t.Skip("needs gcc or clang: make deps installs them")
	}
}
