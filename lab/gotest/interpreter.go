package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// withInterpreter has tests find the Python that python3 is, as an entry of the environment: on PATH it may be a script that looks for one, as pyenv's, which takes longer than many a program of the
// tests. path is PATH, which stays as it is where there is no Python, or where it is a program itself.
func withInterpreter(path string) string {
	found, err := exec.LookPath("python3")
	if err != nil {
		return "PATH=" + path
	}
	out, err := exec.Command(found, "-c", "import sys; print(sys.executable)").Output()
	bin := filepath.Dir(strings.TrimSpace(string(out)))
	if err != nil || bin == filepath.Dir(found) || !filepath.IsAbs(bin) {
		return "PATH=" + path
	}
	return "PATH=" + bin + string(os.PathListSeparator) + path
}
