package ctest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScarce: a process that may have few addresses or descriptors, or no locked memory: an error, and nothing is lost. The program is linked with the shared libc, statically, and statically with
// musl where that is here.
func TestScarce(t *testing.T) {
	_, test, file := onFile(t, "testscarce", "gnu11")
	programs := map[string]string{"shared": test, "static": filepath.Join(t.TempDir(), "static")}
	run(t, "cc", "-std=gnu11", "-O1", "-I..", "-static", "-o", programs["static"], "../testscarce.c", filepath.Join(library(t), "liblanefs.a"), "-pthread", "-ldl")
	if _, err := exec.LookPath("musl-gcc"); err == nil {
		made := t.TempDir()
		run(t, "make", "-s", "-C", "..", "CC=musl-gcc", "BUILD="+made, filepath.Join(made, "liblanefs.a"))
		programs["musl"] = filepath.Join(made, "musl")
		run(t, "musl-gcc", "-std=gnu11", "-O1", "-I..", "-static", "-o", programs["musl"], "../testscarce.c", filepath.Join(made, "liblanefs.a"))
	}
	for kind, program := range programs {
		t.Run(kind, func(t *testing.T) { require.Equal(t, "ok\n", run(t, program, file)) })
	}
}
