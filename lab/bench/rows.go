package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// row is one line of the table.
type row struct {
	name, unit   string
	lessIsBetter bool
	measure      func(mnt string) (float64, error)
}

func (r row) show(v float64) string {
	if v < 10 {
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

const files = 2000

// rows are the table's lines, in the order in which they run on one volume.
func (b *bench) rows() []row {
	fio := func(file string, args ...string) func(string) (float64, error) {
		return func(mnt string) (float64, error) { return runFio(filepath.Join(mnt, file), args...) }
	}
	return []row{
		{name: "sequential write 1 MiB", unit: "MB/s", measure: fio("seq", "--rw=write", "--bs=1M", "--size=512M", "--end_fsync=1")},
		{name: "sequential read 1 MiB", unit: "MB/s", measure: fio("seq", "--rw=read", "--bs=1M", "--size=512M")},
		{name: "random read 4 KiB", unit: "IOPS", measure: fio("seq", "--rw=randread", "--bs=4k", "--size=512M", "--io_size=128M")},
		{name: "random write 4 KiB", unit: "IOPS", measure: fio("seq", "--rw=randwrite", "--bs=4k", "--size=512M", "--io_size=128M", "--end_fsync=1")},
		{name: "random read 4 KiB, O_DIRECT", unit: "IOPS", measure: fio("seq", "--rw=randread", "--bs=4k", "--size=512M", "--io_size=128M", "--direct=1")},
		{name: "random write 4 KiB, O_DIRECT", unit: "IOPS", measure: fio("seq", "--rw=randwrite", "--bs=4k", "--size=512M", "--io_size=128M", "--direct=1")},
		{name: "fsync: random write 4 KiB, each", unit: "IOPS", measure: fio("dur", "--rw=randwrite", "--bs=4k", "--size=64M", "--io_size=8M", "--fsync=1")},
		{name: "fsync: append 4 KiB, 1 writer", unit: "a second", measure: appendSync(1)},
		{name: "fsync: append 4 KiB, 8 writers", unit: "a second", measure: appendSync(8)},
		{name: "fsync: 1,000 new files, each", unit: "s", lessIsBetter: true, measure: createSync},
		{name: "create 2,000 files", unit: "s", lessIsBetter: true, measure: createFiles},
		{name: "list 2,000 files", unit: "s", lessIsBetter: true, measure: listFiles},
		{name: "remove 2,000 files", unit: "s", lessIsBetter: true, measure: removeFiles},
		{name: "cp -a of Go's source tree, syncfs", unit: "s", lessIsBetter: true, measure: b.copyTree},
	}
}

// runFio runs one fio job on a file that it finds or makes, and returns MB/s for large blocks and IOPS for small ones. A
// job begins without the file's pages in the cache (fio's invalidate) and, for writes, ends when fsync has returned.
func runFio(file string, args ...string) (float64, error) {
	args = append([]string{"--name=bench", "--filename=" + file, "--ioengine=psync", "--randseed=1", "--fallocate=none",
		"--output-format=json"}, args...)
	cmd := exec.Command("fio", args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return 0, fmt.Errorf("fio: %w\n%s%s", err, exit.Stderr, out)
		}
		return 0, err
	}
	type side struct {
		Bytes   int64   `json:"io_bytes"`
		Total   int64   `json:"total_ios"`
		Runtime float64 `json:"runtime"` // ms, without the final fsync in some versions
	}
	var result struct {
		Jobs []struct {
			Read, Write side
			Runtime     float64 `json:"job_runtime"` // ms, from start to end
		}
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.Jobs) != 1 {
		return 0, fmt.Errorf("fio printed what cannot be read (%v):\n%s", err, out)
	}
	j := result.Jobs[0]
	s := j.Read
	if s.Bytes == 0 {
		s = j.Write
	}
	elapsed := max(s.Runtime, j.Runtime) / 1000
	if s.Bytes == 0 || elapsed == 0 {
		return 0, fmt.Errorf("fio moved %d bytes in %v s", s.Bytes, elapsed)
	}
	if s.Bytes/s.Total >= 1<<20 {
		return float64(s.Bytes) / elapsed / 1e6, nil
	}
	return float64(s.Total) / elapsed, nil
}

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

// copyTree copies a tree and makes it durable.
func (b *bench) copyTree(mnt string) (float64, error) {
	start := time.Now()
	if _, err := drive.Run("cp", "-a", b.tree, filepath.Join(mnt, "src")); err != nil {
		return 0, err
	}
	if err := sync(mnt); err != nil {
		return 0, err
	}
	return time.Since(start).Seconds(), nil
}
