package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Fio measures a job with fio on the kernel's driver: an image file or block device, by io_uring and O_DIRECT. Nobody else has the device.
// Without writes in the job fio is told --readonly. path is the device, offset and size the region in bytes.
func Fio(ctx context.Context, path string, offset, size int64, j Job) *Line {
	l := NewLine(j)
	l.By, l.Doorbell, l.Queue, l.Batch, l.MemoryMode, l.Verified, l.Traced = "fio", "", 0, 0, 0, false, false
	if err := l.fio(ctx, path, offset, size, j); err != nil {
		l.Refused = err.Error()
	}
	return l
}

func (l *Line) fio(ctx context.Context, path string, offset, size int64, j Job) error {
	version, err := exec.Command("fio", "--version").Output()
	if err != nil {
		return fmt.Errorf("fio does not run: %w", err)
	}
	l.By = strings.TrimSpace(string(version)) + " on the kernel's driver, io_uring, O_DIRECT"
	out, err := exec.CommandContext(ctx, "fio", fioArgs(path, offset, size, j)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			said, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)+"\n"+string(out)), "\n")
			return fmt.Errorf("fio: %w: %s", err, said)
		}
		return err
	}
	return l.parseFio(out)
}

func fioArgs(path string, offset, size int64, j Job) []string {
	rw := map[bool]string{true: "", false: "rand"}[j.Sequential]
	switch j.Reads {
	case 100:
		rw += "read"
	case 0:
		rw += "write"
	default:
		rw += "rw"
	}
	args := []string{"--name=lanefs", "--filename=" + strings.ReplaceAll(path, ":", `\:`), "--ioengine=io_uring", "--direct=1", "--rw=" + rw,
		"--rwmixread=" + strconv.Itoa(j.Reads), "--bs=" + strconv.FormatInt(j.Block, 10), "--iodepth=" + strconv.Itoa(j.Depth),
		"--numjobs=" + strconv.Itoa(j.Lanes), "--offset=" + strconv.FormatInt(offset, 10), "--size=" + strconv.FormatInt(size/j.Block*j.Block, 10),
		"--randseed=" + strconv.FormatUint(j.Seed&(1<<63-1), 10), "--norandommap", "--thread", "--group_reporting",
		"--clat_percentiles=0", "--lat_percentiles=1", "--percentile_list=50:90:95:99:99.9:99.99", "--output-format=json"}
	if !j.writes() {
		args = append(args, "--readonly")
	}
	if j.Time > 0 {
		args = append(args, "--time_based", "--runtime="+strconv.FormatInt(j.Time.Milliseconds(), 10)+"ms")
	} else if j.Count > 0 {
		each := (j.Count-1)/uint64(j.Lanes) + 1
		args = append(args, "--number_ios="+strconv.FormatUint(each, 10))
	}
	return args
}

// fioSide is one direction in fio's JSON.
type fioSide struct {
	IOPS  float64 `json:"iops"`
	BW    float64 `json:"bw_bytes"`
	Total uint64  `json:"total_ios"`
	Msec  int64   `json:"runtime"`
	Lat   struct {
		Min, Max, Mean float64
		Percentile     map[string]int64
	} `json:"lat_ns"`
}

func (l *Line) parseFio(out []byte) error {
	var r struct {
		Jobs []struct {
			Error       int
			Read, Write fioSide
		}
	}
	if i := bytes.IndexByte(out, '{'); i > 0 { // notes come before it
		out = out[i:]
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return fmt.Errorf("fio's JSON: %w", err)
	}
	if len(r.Jobs) != 1 {
		return fmt.Errorf("fio reports %d jobs, want one", len(r.Jobs))
	}
	job := &r.Jobs[0]
	if job.Error != 0 {
		return fmt.Errorf("fio's jobs ended with error %d", job.Error)
	}
	l.Commands = job.Read.Total + job.Write.Total
	l.IOPS, l.Bandwidth = job.Read.IOPS+job.Write.IOPS, job.Read.BW+job.Write.BW
	l.Elapsed = time.Duration(max(job.Read.Msec, job.Write.Msec)) * time.Millisecond
	l.Read, l.Write = job.Read.times(), job.Write.times()
	return nil
}

// times are those from a command's submission to its completion.
func (s *fioSide) times() *Times {
	if s.Total == 0 {
		return nil
	}
	p := func(name string) time.Duration { return time.Duration(s.Lat.Percentile[name]) }
	return &Times{s.Total, time.Duration(s.Lat.Mean), time.Duration(s.Lat.Min), p("50.000000"), p("90.000000"), p("95.000000"), p("99.000000"),
		p("99.900000"), p("99.990000"), time.Duration(s.Lat.Max)}
}
