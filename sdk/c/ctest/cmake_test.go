package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const project = `cmake_minimum_required(VERSION 3.13)
project(example C)
find_package(lanefs 1.0 REQUIRED)
find_package(lanefs REQUIRED) # as another part of a project does
get_target_property(needed lanefs::static INTERFACE_LINK_LIBRARIES)
if(CMAKE_DL_LIBS AND NOT CMAKE_DL_LIBS IN_LIST needed) # glibc's before 2.34 has it apart
  message(FATAL_ERROR "the static library needs ${CMAKE_DL_LIBS}: ${needed}")
endif()
add_executable(shared ${SOURCE})
target_link_libraries(shared lanefs::lanefs)
add_executable(static ${SOURCE})
target_link_libraries(static lanefs::static)
`

// TestCMake: find_package finds an installed tree that was moved, both libraries link, and a version that is too new is refused.
func TestCMake(t *testing.T) {
	for _, tool := range []string{"cc", "make", "cmake"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install --no-install-recommends cmake", tool)
		}
	}
	at := t.TempDir()
	run(t, "make", "-s", "-C", "..", "install", "BUILD="+library(t), "DESTDIR="+filepath.Join(at, "first"), "PREFIX=/opt/lanefs",
		"LIBDIR=/opt/lanefs/lib/x86_64-linux-gnu")
	moved, source := filepath.Join(at, "moved"), filepath.Join(at, "source")
	require.NoError(t, os.Rename(filepath.Join(at, "first", "opt", "lanefs"), moved))
	require.NoError(t, os.Mkdir(source, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(source, "CMakeLists.txt"), []byte(project), 0o644))
	example, err := filepath.Abs(filepath.Join("..", "example.c"))
	require.NoError(t, err)
	out := filepath.Join(at, "out")
	run(t, "cmake", "-S", source, "-B", out, "-DSOURCE="+example, "-DCMAKE_PREFIX_PATH="+moved)
	run(t, "cmake", "--build", out)
	for _, kind := range []string{"shared", "static"} {
		said, err := exec.Command(filepath.Join(out, kind), "/proc/self/status").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(said), "not on a LaneFS mount", kind)
	}
	require.NoError(t, os.WriteFile(filepath.Join(source, "CMakeLists.txt"), []byte("cmake_minimum_required(VERSION 3.13)\nproject(x C)\nfind_package(lanefs 1.9 REQUIRED)\n"), 0o644))
	said, err := exec.Command("cmake", "-S", source, "-B", filepath.Join(at, "newer"), "-Dlanefs_DIR="+filepath.Join(moved, "lib/x86_64-linux-gnu/cmake/lanefs")).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "1.9")
}
