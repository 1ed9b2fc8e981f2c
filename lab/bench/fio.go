package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
)

// fio returns a measurement by a fio job, whose files it finds or makes in the mount. It gives MB/s for large blocks and operations a second
// for small ones. A job begins without the file's pages in the cache (fio's invalidate) and ends, with --end_fsync, when fsync has returned.
func fio(args ...string) func(s *system) (done, error) {
	return func(s *system) (done, error) {
		args := append([]string{"--name=bench", "--directory=" + s.mnt, "--ioengine=psync", "--randseed=1", "--fallocate=none",
			"--output-format=json"}, args...)
		out, err := exec.Command("fio", args...).Output()
		if err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return done{}, fmt.Errorf("fio: %w\n%s%s", err, exit.Stderr, out)
			}
			return done{}, err
		}
		return parseFio(out)
	}
}

// parseFio reads fio's JSON. Jobs run at the same time: the longest says how long it took.
func parseFio(out []byte) (done, error) {
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
	if err := json.Unmarshal(out, &result); err != nil {
		return done{}, fmt.Errorf("fio printed what cannot be read: %w\n%s", err, out)
	}
	var bytes, ops int64
	var elapsed float64 // s
	for _, j := range result.Jobs {
		bytes += j.Read.Bytes + j.Write.Bytes
		ops += j.Read.Total + j.Write.Total
		elapsed = max(elapsed, j.Read.Runtime/1000, j.Write.Runtime/1000, j.Runtime/1000)
	}
	if bytes == 0 || ops == 0 || elapsed == 0 {
		return done{}, fmt.Errorf("fio moved %d bytes in %v s", bytes, elapsed)
	}
	if bytes/ops >= 1<<20 {
		return done{float64(bytes) / elapsed / 1e6, float64(ops)}, nil
	}
	return done{float64(ops) / elapsed, float64(ops)}, nil
}
