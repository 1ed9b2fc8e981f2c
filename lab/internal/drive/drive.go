// Package drive runs the lanefs binary and tools for the programs of the lab. The error of a command that fails has the command
// line and its output.
package drive

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Run runs a command, in the C locale and with the system's administration commands on its path, and returns its output.
func Run(name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// Timed is Run, and returns how long the command ran.
func Timed(name string, args ...string) (time.Duration, error) {
	start := time.Now()
	_, err := Run(name, args...)
	return time.Since(start), err
}

// Need returns an error that lists the missing commands, nil if there are all.
func Need(commands ...string) error {
	var missing []string
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s; make deps installs what LaneFS needs", strings.Join(missing, ", "))
	}
	return nil
}

// OnInterrupt calls tidy before the program ends by SIGINT or SIGTERM.
func OnInterrupt(program string, tidy func() error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		fmt.Fprintln(os.Stderr, program+": interrupted:", tidy())
		os.Exit(1)
	}()
}

// GoSource returns the source tree of the Go installation: a real tree that is there wherever LaneFS is built.
func GoSource() (string, error) {
	out, err := Run("go", "env", "GOROOT")
	return filepath.Join(strings.TrimSpace(out), "src"), err
}

// Queue is a queue pair's counters, as `lanefs stat --json` prints them.
type Queue struct {
	QID          int   `json:"qid"`
	Commands     int64 `json:"commands"`
	Shortcuts    int64 `json:"shortcuts"`
	Completions  int64 `json:"completions"`
	BytesRead    int64 `json:"bytes_read"`
	BytesWritten int64 `json:"bytes_written"`
	SQDoorbells  int64 `json:"sq_doorbells"`
	CQDoorbells  int64 `json:"cq_doorbells"`
	Errors       int64 `json:"errors"`
	Timeouts     int64 `json:"timeouts"`
	Late         int64 `json:"late"`
	Spurious     int64 `json:"spurious"`
	Rejected     int64 `json:"rejected"`
}

// Stat is the part of `lanefs stat --json` that the demo and the bench use.
type Stat struct {
	PID       int     `json:"pid"`
	Simulated bool    `json:"simulated"`
	Queues    []Queue `json:"queues"`
	Total     Queue   `json:"total"`
	FUSE      struct {
		Transport string `json:"transport"`              // /dev/fuse, or io_uring and what it has
		WhyNot    string `json:"not_io_uring,omitempty"` // why not io_uring, if that was asked for
	} `json:"fuse"`
	Volume struct {
		DataRead        int64 `json:"data_read"`
		DataWritten     int64 `json:"data_written"`
		MetadataRead    int64 `json:"metadata_read"`
		MetadataWritten int64 `json:"metadata_written"`
		JournalWritten  int64 `json:"journal_written"`
	} `json:"volume"`
}

// ReadStat reads the counters of a mount.
func ReadStat(lanefs, dir string) (*Stat, error) {
	cmd := exec.Command(lanefs, "stat", "--json", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("lanefs stat %s: %w", dir, err)
	}
	var s Stat
	if err := json.Unmarshal(out, &s); err != nil {
		return nil, fmt.Errorf("lanefs stat %s: %w", dir, err)
	}
	return &s, nil
}
