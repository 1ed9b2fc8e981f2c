package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The rows of many small files.

const files = 2000

func name(mnt string, i int) string { return filepath.Join(mnt, "many", fmt.Sprintf("file-%05d", i)) }

// createFiles makes files of 100 bytes.
func createFiles(mnt string) (float64, error) {
	if err := os.Mkdir(filepath.Join(mnt, "many"), 0o755); err != nil {
		return 0, err
	}
	content := make([]byte, 100)
	start := time.Now()
	for i := range files {
		if err := os.WriteFile(name(mnt, i), content, 0o644); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds(), nil
}

// listFiles reads the directory and the attributes of each file, as ls -l does.
func listFiles(mnt string) (float64, error) {
	if err := sync(mnt); err != nil {
		return 0, err
	}
	start := time.Now()
	entries, err := os.ReadDir(filepath.Join(mnt, "many"))
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if _, err := e.Info(); err != nil {
			return 0, err
		}
	}
	if len(entries) != files {
		return 0, fmt.Errorf("%d names of %d", len(entries), files)
	}
	return time.Since(start).Seconds(), nil
}

func removeFiles(mnt string) (float64, error) {
	start := time.Now()
	for i := range files {
		if err := os.Remove(name(mnt, i)); err != nil {
			return 0, err
		}
	}
	return time.Since(start).Seconds(), nil
}
