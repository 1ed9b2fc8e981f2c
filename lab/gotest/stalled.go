package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// deepest is how many functions of the kernel are named for a thread, and most how many lines there are at most.
const (
	deepest = 6
	most    = 12
)

// stalled names what may keep a test from its end and is no fault of its own: threads that wait in the kernel and hear no signal, and
// processes in a mount namespace of their own, whose copies of mounts keep those in use. Threads of a process that wait at the same place are
// one line. root is where /proc is mounted.
func stalled(root string) (lines []string) {
	same := map[string]int{} // threads, by line
	own, _ := os.Readlink(filepath.Join(root, "self/ns/mnt"))
	processes, _ := filepath.Glob(filepath.Join(root, "[0-9]*"))
	for _, dir := range processes {
		name := filepath.Base(dir)
		if ns, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err == nil && ns != own {
			args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			if len(args) > 0 { // the kernel's threads have none
				lines = append(lines, fmt.Sprintf("process %s is in another mount namespace: %.100s", name, strings.ReplaceAll(strings.TrimRight(string(args), "\x00"), "\x00", " ")))
			}
		}
		threads, _ := filepath.Glob(filepath.Join(dir, "task/[0-9]*"))
		for _, t := range threads {
			stat, _ := os.ReadFile(filepath.Join(t, "stat"))
			begin, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')') // the name may hold both
			if begin < 0 || end < begin || !strings.HasPrefix(string(stat[end+1:]), " D") {
				continue
			}
			stack, _ := os.ReadFile(filepath.Join(t, "stack")) // root's to read
			var in []string
			for line := range strings.Lines(string(stack)) {
				_, at, _ := strings.Cut(strings.TrimSpace(line), " ")
				if at, _, _ = strings.Cut(at, "+"); at != "" && len(in) < deepest {
					in = append(in, at)
				}
			}
			line := fmt.Sprintf("of process %s, %s, in the kernel: %s", name, stat[begin+1:end], strings.Join(in, " < "))
			if same[line]++; same[line] == 1 {
				lines = append(lines, line)
			}
		}
	}
	if left := len(lines) - most; left > 0 {
		lines = append(lines[:most], fmt.Sprintf("and %d lines more", left))
	}
	for i, line := range lines {
		if n := same[line]; n > 0 {
			lines[i] = fmt.Sprintf("waiting threads: %d %s", n, line)
		}
	}
	return lines
}
