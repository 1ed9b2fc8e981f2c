// Command transport compares FUSE over io_uring with /dev/fuse: the same fio jobs on mounts of LaneFS with different options, and on a
// file system that does nothing, which shows what the transport itself can do. The ways take turns; the table shows medians.
//
// It needs root, fio, and the fuse module's parameter enable_uring.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring/nullfs"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

// way is a mount to measure.
type way struct {
	name    string
	options string // of LaneFS
	null    string // fuse or uring: the file system that does nothing
	dir     string
}

var ways = []way{
	{name: "lanefs /dev/fuse", options: "io_uring=off"}, {name: "lanefs io_uring", options: "io_uring=on"},
	{name: "null /dev/fuse", null: "fuse"}, {name: "null io_uring", null: "uring"},
}

type job struct {
	name string
	args []string
}

func jobs(seconds string) []job {
	common := []string{"--ioengine=psync", "--direct=1", "--size=512M", "--time_based", "--runtime=" + seconds, "--fallocate=none"}
	j := func(name string, args ...string) job { return job{name, append(args, common...)} }
	return []job{
		j("random read 4 KiB", "--rw=randread", "--bs=4k"), j("random write 4 KiB", "--rw=randwrite", "--bs=4k"),
		j("random read 4 KiB, 4 jobs", "--rw=randread", "--bs=4k", "--numjobs=4"), j("random write 4 KiB, 4 jobs", "--rw=randwrite", "--bs=4k", "--numjobs=4"),
		j("sequential read 1 MiB", "--rw=read", "--bs=1M"), j("sequential write 1 MiB", "--rw=write", "--bs=1M"),
		{"sequential read through the cache", []string{"--ioengine=psync", "--size=512M", "--fallocate=none", "--rw=read", "--bs=1M"}},
	}
}

// figure is what a job gave.
type figure struct{ perSecond, cpu float64 } // µs of the daemon's CPU time for each operation

func main() {
	lanefs := flag.String("lanefs", "./lanefs", "the binary to measure")
	where := flag.String("dir", "/dev/shm", "where the image goes")
	runs := flag.Int("runs", 3, "runs of each; the median counts")
	seconds := flag.String("time", "2", "seconds of each job")
	only := flag.String("ways", "", "ways to run, by a part of their names")
	serve := flag.String("serve", "", "internal")
	flag.Parse()
	var err error
	if *serve != "" {
		err = serveNull(*serve, flag.Arg(0))
	} else {
		err = run(*lanefs, *where, *runs, *seconds, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "transport: FAILED:", err)
		os.Exit(1)
	}
}

func run(lanefs, where string, runs int, seconds, only string) error {
	if err := drive.Need("mkfs.ext4", "fio"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(where, "lanefs-transport-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	chosen := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !strings.Contains(w.name, only) })
	all := map[string][]figure{}
	for range runs {
		for _, w := range chosen {
			w.dir = filepath.Join(dir, "mnt")
			if err := w.measure(lanefs, dir, seconds, all); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "a second; µs of the daemon's CPU each")
	for _, w := range chosen {
		fmt.Fprintf(out, "\t%s", w.name)
	}
	fmt.Fprintln(out)
	for _, j := range jobs(seconds) {
		fmt.Fprint(out, j.name)
		for _, w := range chosen {
			f := all[w.name+j.name]
			fmt.Fprintf(out, "\t%.0f; %.1f", median(f, func(f figure) float64 { return f.perSecond }), median(f, func(f figure) float64 { return f.cpu }))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func median(f []figure, of func(figure) float64) float64 {
	var v []float64
	for _, x := range f {
		v = append(v, of(x))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func (w way) measure(lanefs, dir, seconds string, all map[string][]figure) (err error) {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	pid, end, err := w.mount(lanefs, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, j := range jobs(seconds) {
		before, err := cpuTime(pid)
		if err != nil {
			return err
		}
		ops, rate, err := fio(append([]string{"--name=job", "--filename=" + filepath.Join(w.dir, "data")}, j.args...))
		if err != nil {
			return err
		}
		after, err := cpuTime(pid)
		if err != nil {
			return err
		}
		all[w.name+j.name] = append(all[w.name+j.name], figure{rate, (after - before) / ops})
	}
	return nil
}

// mount mounts, and says which process serves and how to end it.
func (w way) mount(lanefs, dir string) (pid int, end func() error, err error) {
	if w.null != "" {
		cmd := exec.Command("/proc/self/exe", "-serve", w.null, w.dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, nil, err
		}
		if err := cmd.Start(); err != nil {
			return 0, nil, err
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return 0, nil, fmt.Errorf("the null file system: %q, %w", line, errors.Join(err, cmd.Wait()))
		}
		return cmd.Process.Pid, func() error { return errors.Join(unix.Unmount(w.dir, 0), cmd.Wait()) }, nil
	}
	image := filepath.Join(dir, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<30)); err != nil {
		return 0, nil, err
	}
	if _, err := drive.Run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image); err != nil {
		return 0, nil, err
	}
	if _, err := drive.Run(lanefs, "mount", "-o", w.options, image, w.dir); err != nil {
		return 0, nil, err
	}
	text, err := exec.Command(lanefs, "stat", "--json", w.dir).Output()
	var stat struct {
		PID  int `json:"pid"`
		FUSE struct {
			Transport string `json:"transport"`
			WhyNot    string `json:"not_io_uring"`
		} `json:"fuse"`
	}
	if err = errors.Join(err, json.Unmarshal(text, &stat)); err == nil && stat.FUSE.WhyNot != "" {
		err = errors.New(stat.FUSE.WhyNot)
	}
	end = func() error { _, err := drive.Run(lanefs, "umount", w.dir); return err }
	if err == nil {
		_, _, err = fio([]string{"--name=fill", "--filename=" + filepath.Join(w.dir, "data"), "--rw=write", "--bs=1M", "--size=512M", "--ioengine=psync"})
	}
	if err != nil {
		return 0, nil, errors.Join(err, end())
	}
	return stat.PID, end, nil
}

// serveNull is the process of a null file system.
func serveNull(transport, dir string) error {
	signal.Ignore(unix.SIGINT)
	m, err := nullfs.NewMount(dir, nullfs.New(), transport == "uring", slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	m.Wait()
	return nil
}

// cpuTime is the CPU time of a process in µs.
func cpuTime(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Fields 14 and 15, counted behind the name, in ticks of 10 ms (proc_pid_stat(5)).
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) * 10000, errors.Join(err1, err2)
}

// fio runs a job and returns how many operations it made, and how many a second.
func fio(args []string) (ops, perSecond float64, err error) {
	out, err := exec.Command("fio", append(args, "--output-format=json", "--group_reporting")...).Output()
	if err != nil {
		return 0, 0, fmt.Errorf("fio: %w: %s", err, out)
	}
	var r struct {
		Jobs []struct {
			Read, Write struct {
				Ops       float64 `json:"total_ios"`
				PerSecond float64 `json:"iops"`
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil || len(r.Jobs) != 1 {
		return 0, 0, fmt.Errorf("fio says what is not understood: %w: %s", err, out)
	}
	j := r.Jobs[0]
	return j.Read.Ops + j.Write.Ops, j.Read.PerSecond + j.Write.PerSecond, nil
}
