// Command gotest runs every test of the module: what `make test` does. Mounts take requests by io_uring. The packages in $MOUNTS, which are those
// with mounts, run once more over /dev/fuse, but for the tests that match $NOT_TWICE, of which the seed says a quarter (fuseturns.go). Where $DETECT is set
// all of those run, the packages in $RACE run under the race detector, and some tests of others (parts.go). Packages in $FIRST begin first, because they
// take longest.
// All of that is one queue (jobs.go), so that no part waits for the end of another one's last package; of a package in $BESIDE several parts may
// run at once, two of them on rings, of another one only one.
//
// Failures appear with their output, and each package as one line when it ends; when nothing has ended for half a minute, the
// tests that run are named. At the end comes what was skipped and why, and what failed. All output of all tests goes to build/test.log.
// There is no go vet: that is `make check`.
//
// $GO is the go command. $LANEFS_SEED is where tests that try things at random begin; it follows from the commit's tree unless it is set.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// timeout is the most that the tests of one package may take.
const timeout = 25 * time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run() error {
	gocmd := os.Getenv("GO")
	if gocmd == "" {
		gocmd = "go"
	}
	list := func(patterns ...string) ([]string, error) {
		out, err := command(append([]string{gocmd, "list", "-e"}, patterns...), nil).Output()
		return strings.Fields(string(out)), err
	}
	all, err := list("./...")
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	listed := map[string][]string{}
	for _, name := range []string{"RACE", "RACE_SOME", "RACE_LESS", "MOUNTS", "FIRST", "BESIDE"} {
		if patterns := strings.Fields(os.Getenv(name)); len(patterns) > 0 {
			if listed[name], err = list(patterns...); err != nil {
				return fmt.Errorf("go list %s: %w", patterns, err)
			}
		}
	}
	if err := os.MkdirAll("build", 0o755); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join("build", "test.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	r := newReport(os.Stdout, log)
	why, err := noDetector(gocmd)
	if err != nil {
		return err
	} else if why != "" {
		r.notes = append(r.notes, "race detector: not used, "+why)
	}
	seed := os.Getenv("LANEFS_SEED")
	if seed == "" {
		seed = treeSeed()
	}
	fmt.Printf("fresh seeds: LANEFS_SEED=%s\n", seed)
	fmt.Fprintf(log, "fresh seeds: LANEFS_SEED=%s\n", seed)
	var left []string
	if os.Getenv("DETECT") == "" { // which asks for all of them
		names, err := testsIn(gocmd, listed["MOUNTS"])
		if err != nil {
			return err
		}
		var of int
		if left, of = others(names, os.Getenv("NOT_TWICE"), seed); len(left) > 0 {
			r.notes = append(r.notes, fmt.Sprintf("over /dev/fuse the seed has left out %d of %d tests, which ran on rings (make test DETECT=1 has all): %s", len(left), of, strings.Join(left, " ")))
		}
	}
	back, err := drive.OfferRings()
	if err != nil {
		r.notes = append(r.notes, fmt.Sprintf("FUSE over io_uring: mounts take requests by /dev/fuse: %v", err))
	}
	defer back()
	drive.OnInterrupt("gotest", back)
	path := withInterpreter(os.Getenv("PATH"))
	start := func(j part) error {
		args := slices.Concat([]string{gocmd, "test", "-json", "-count=1", "-vet=off", "-p", "1", "-timeout", timeout.String()}, j.flags, j.packages)
		return test(command(args, []string{"CGO_ENABLED=" + j.cgo, "LANEFS_SEED=" + seed, withRings(j.rings), withoutSleep(os.Getenv("GORACE")), path}), r, j)
	}
	stop := make(chan struct{})
	defer close(stop)
	go freeDying(os.Stdout, func() []string { return waiting(connections) }, dyingPatience, dyingLook, stop)
	// Many tests wait more than they compute; with more at once their waits are no measure of anything.
	if err := runJobs(jobs(partsOf(all, listed, why == "", left), listed["FIRST"]), listed["BESIDE"], runtime.NumCPU()+2, start); err != nil {
		return err
	}
	return r.end()
}

// test runs go test -json, and reports what it prints and the CPU time that it took. A test that fails is no error here.
func test(cmd *exec.Cmd, r *report, j part) error {
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		pw.Close()
		waited <- err
	}()
	if err := r.read(pr, j.name); err != nil {
		return err
	}
	err := <-waited
	r.spent(j.packages, j.name, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if err != nil && !r.failed() {
		return fmt.Errorf("go test: %w, and no test has failed", err)
	}
	return nil
}

func command(args, env []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// treeSeed is the same for one state of the sources on every machine, and another one for each state.
func treeSeed() string {
	out, err := exec.Command("git", "rev-parse", "HEAD^{tree}").Output()
	if err != nil || len(out) < 8 {
		return "1"
	}
	n, err := strconv.ParseUint(string(out[:8]), 16, 32)
	if err != nil {
		return "1"
	}
	return strconv.FormatUint(n%1_000_000_000, 10)
}
