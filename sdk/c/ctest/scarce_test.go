package ctest

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/made"
)

// TestScarce: a process that may have few addresses or descriptors, or no locked memory: an error, and nothing is lost. The program is linked with the shared libc, statically, and statically with
// musl where that is here: make test has one of them.
func TestScarce(t *testing.T) {
	_, test, file := onFile(t, "testscarce", "gnu11")
	programs := map[string]string{"shared": test, "static": filepath.Join(t.TempDir(), "static")}
	compile(t, programs["static"], "cc", "-std=gnu11", "-O1", "-I..", "-static", "../testscarce.c", filepath.Join(library(t), "liblanefs.a"), "-pthread", "-ldl")
	if _, err := exec.LookPath("musl-gcc"); err == nil {
		programs["musl"] = filepath.Join(t.TempDir(), "musl")
		compile(t, programs["musl"], "musl-gcc", "-std=gnu11", "-O1", "-I..", "-static", "../testscarce.c", filepath.Join(libraryOfMusl(t), "liblanefs.a"))
	}
	for k, kind := range slices.Sorted(maps.Keys(programs)) {
		if disktest.Turn(k, len(programs)) {
			t.Run(kind, func(t *testing.T) { require.Equal(t, "ok\n", run(t, programs[kind], file)) })
		}
	}
}

// libraryOfMusl is the folder of the library as musl-gcc makes it, or has made it of the same before.
func libraryOfMusl(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob("../*.c")
	require.NoError(t, err)
	key, err := made.Key([]string{"musl-gcc", "make"}, append(sources, "the C library with musl", "../images.S", "../images", "../Makefile")...)
	require.NoError(t, err)
	dir, err := made.In(key, func(dir string) error {
		if out, err := exec.Command("make", "-s", "-C", "..", "CC=musl-gcc", "BUILD="+dir, filepath.Join(dir, "liblanefs.a")).CombinedOutput(); err != nil {
			return fmt.Errorf("make: %w: %s", err, out)
		}
		return nil
	})
	require.NoError(t, err)
	return dir
}
