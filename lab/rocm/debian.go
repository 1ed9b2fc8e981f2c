package rocm

import (
	"os"
	"path/filepath"
	"testing"
)

// Release is one of Debian's ROCm releases, unpacked by lab/rocm/fetch.
type Release struct {
	Dir string // what stands in it is named as below /
}

// Debian returns a release by its version, 5.2.3 or 6.4.3. It skips the test if the release was not fetched.
func Debian(t testing.TB, version string) Release {
	t.Helper()
	cache := os.Getenv("LANEFS_ROCM")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("this test looks for ROCm in the user's cache: %v", err)
		}
		cache = filepath.Join(base, "lanefs", "rocm")
	}
	r := Release{filepath.Join(cache, version)}
	if _, err := os.Stat(filepath.Join(r.Dir, ".done")); err != nil {
		t.Skip("this test needs Debian's ROCm: run lab/rocm/fetch (150 MB)")
	}
	return r
}

// Lib returns the path of a library of the release, "" for the folder of the libraries.
func (r Release) Lib(name string) string {
	return filepath.Join(r.Dir, "usr/lib/x86_64-linux-gnu", name)
}
