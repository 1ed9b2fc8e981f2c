// Command stress is `make stress`: stress-ng's file system stressors, one after another, on a mount whose daemon was built
// with the race detector. It fails when a stressor does, when the daemon reports a race or dies, and when e2fsck finds
// anything afterwards.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// excluded are stressors of the class that do not use this mount, or that no FUSE mount supports.
var excluded = map[string]string{
	"binderfs":   "mounts binderfs, and nothing else",
	"bind-mount": "needs a user namespace of its own, and looks at mounts, not at files",
	"eventfd":    "has no files",
	"fiemap":     "FUSE has no FIEMAP; it skips itself",
	"ioprio":     "reads and writes one small file to see what the I/O scheduler does, which is below us",
	"procfs":     "is about /proc",
	"verity":     "LaneFS has no verity; it skips itself",
}

func main() {
	s := stress{}
	flag.StringVar(&s.lanefs, "lanefs", "./lanefs", "the binary, built with -race")
	flag.StringVar(&s.options, "o", "", "mount options")
	flag.StringVar(&s.ioURing, "io_uring", "auto", "on, off or auto: how requests come, which is checked")
	flag.DurationVar(&s.time, "time", 10*time.Minute, "for all stressors together")
	flag.IntVar(&s.workers, "workers", 4, "of each stressor at once")
	flag.StringVar(&s.only, "only", "", "stressors to run, separated by commas (default: the class filesystem)")
	flag.Parse()
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "stress: FAILED:", err)
		os.Exit(1)
	}
}

type stress struct {
	lanefs, options, only string
	ioURing               string
	time                  time.Duration
	workers               int

	dir, image, mnt, log, races string
	mounted                     bool
}

func (s *stress) run() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: some stressors do")
	}
	if err := drive.Need("mkfs.ext4", "e2fsck", "stress-ng"); err != nil {
		return err
	}
	names, err := s.stressors()
	if err != nil {
		return err
	}
	if s.lanefs, err = filepath.Abs(s.lanefs); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "lanefs-stress-"); err != nil {
		return err
	}
	s.image, s.mnt = filepath.Join(s.dir, "image"), filepath.Join(s.dir, "mnt")
	s.log, s.races = filepath.Join(s.dir, "log"), filepath.Join(s.dir, "race")
	back, err := drive.OfferRings()
	if err != nil && s.ioURing == "on" {
		fmt.Println("stress: SKIPPED over io_uring:", err)
		return os.RemoveAll(s.dir)
	}
	tidy := func() error {
		return errors.Join(s.abandon(), os.RemoveAll(s.dir), back())
	}
	defer func() { err = errors.Join(err, tidy()) }()
	drive.OnInterrupt("stress", tidy)
	if err := s.mount(); err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		if err := s.one(name, s.time/time.Duration(len(names))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = append(failed, err)
		}
		if err := s.reports(); err != nil {
			return errors.Join(append(failed, fmt.Errorf("after %s: %w", name, err))...)
		}
	}
	return errors.Join(append(failed, s.finish())...)
}

// stressors lists what is to run.
func (s *stress) stressors() ([]string, error) {
	if s.only != "" {
		return strings.Split(s.only, ","), nil
	}
	out, _ := exec.Command("stress-ng", "--class", "filesystem?").CombinedOutput() // its exit status is always an error
	_, list, found := strings.Cut(string(out), "stressors:")
	if !found {
		return nil, fmt.Errorf("stress-ng does not list its file system stressors: %q", out)
	}
	return slices.DeleteFunc(strings.Fields(list), func(name string) bool {
		why := excluded[name]
		if why != "" {
			fmt.Printf("leaving out %s: %s\n", name, why)
		}
		return why != ""
	}), nil
}

func (s *stress) mount() error {
	if err := os.Mkdir(s.mnt, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(s.image, 2<<30); err != nil {
		return err
	}
	if _, err := drive.Run("mkfs.ext4", "-q", "-F", "-O", "metadata_csum_seed,orphan_file", s.image); err != nil {
		return err
	}
	os.Setenv("GORACE", "log_path="+s.races)
	if _, err := drive.Run(s.lanefs, "mount", "-o", strings.Trim("io_uring="+s.ioURing+",log="+s.log+","+s.options, ","), s.image, s.mnt); err != nil {
		return err
	}
	s.mounted = true
	return drive.RequireTransport(s.lanefs, s.mnt, s.ioURing)
}

// one runs a stressor. With --verify it checks what it reads; errors that it finds fail the run.
func (s *stress) one(name string, d time.Duration) error {
	seconds := max(int(d.Seconds()), 1)
	fmt.Printf("%s, %d s\n", name, seconds)
	out, err := drive.Run("stress-ng", "--"+name, fmt.Sprint(s.workers), "--timeout", fmt.Sprintf("%ds", seconds), "--verify", "--temp-path", s.mnt)
	if err != nil || strings.Contains(out, "fail:") {
		return fmt.Errorf("stressor %s: %w", name, errors.Join(err, errors.New(strings.TrimSpace(out))))
	}
	return nil
}

// reports returns an error with what the race detector has found so far.
func (s *stress) reports() error {
	files, err := filepath.Glob(s.races + ".*")
	for _, f := range files {
		text, rerr := os.ReadFile(f)
		err = errors.Join(err, rerr, fmt.Errorf("the race detector reports:\n%s", text))
	}
	if err == nil {
		_, err = drive.ReadStat(s.lanefs, s.mnt)
	}
	if err != nil {
		text, _ := os.ReadFile(s.log)
		err = fmt.Errorf("%w\nthe daemon's log:\n%s", err, text)
	}
	return err
}

// finish unmounts and runs e2fsck.
func (s *stress) finish() error {
	stat, err := drive.ReadStat(s.lanefs, s.mnt)
	if err != nil {
		return err
	}
	fmt.Printf("%d commands of the lanes, %d MiB written; e2fsck -fn\n", stat.Total.Commands, stat.Total.BytesWritten>>20)
	if _, err := drive.Run(s.lanefs, "umount", s.mnt); err != nil {
		return err
	}
	s.mounted = false
	if log, err := os.ReadFile(s.log); err != nil || strings.Contains(string(log), "level=ERROR") || strings.Contains(string(log), "level=WARN") {
		return errors.Join(err, fmt.Errorf("the daemon had something to say:\n%s", log))
	}
	if _, err = drive.Run("e2fsck", "-fn", s.image); err == nil {
		fmt.Printf("stress: requests by %s: the race detector reported nothing, the volume is clean\n", stat.FUSE.Transport)
	}
	return err
}

// abandon removes what a failed run left.
func (s *stress) abandon() error {
	if !s.mounted {
		return nil
	}
	if _, err := drive.Run(s.lanefs, "umount", s.mnt); err != nil {
		return errors.Join(err, exec.Command("umount", "-l", s.mnt).Run())
	}
	s.mounted = false
	return nil
}
