package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
)

// A daemon is this program again, in a session of its own, with daemonEnv in its environment and a pipe as descriptor 3.
// It reads its configuration from the environment and writes one line to the pipe: empty when the mount answers, else why
// not. Before an empty line come notes for the user and how far the recovery of the volume has come, each a line of its own. The pipe's
// end without a line means that it died.

const (
	daemonEnv    = "LANEFS_DAEMON"
	readyFD      = 3
	notePrefix   = "note: "
	readyTimeout = 10 * time.Minute // a long journal may be replayed before the mount answers
)

// startDaemon returns nil once the mount answers, else the daemon's error.
func startDaemon(cfg *mountConfig, out io.Writer) error {
	raiseLimits()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	conf, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(conf))
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	logPath, logged := logOf(cfg)
	var early tail
	stderr, err := cmd.StderrPipe() // until the daemon has a log of its own
	if err != nil {
		w.Close()
		return err
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("starting the daemon: %w", err)
	}
	drained := make(chan struct{})
	go func() { io.Copy(&early, stderr); close(drained) }()

	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(interrupted)
	answer := make(chan error, 1)
	go func() { answer <- readAnswer(r, out) }()
	ends := []os.Signal{nil, unix.SIGTERM, unix.SIGKILL}
	select {
	case err = <-answer:
		if err == nil {
			return cmd.Process.Release()
		}
	case s := <-interrupted:
		err = fmt.Errorf("interrupted (%v)", s)
		ends = ends[1:]
	case <-time.After(readyTimeout):
		err = fmt.Errorf("%q did not answer at %q within %v, so the mount was given up: lanefs check %s says what the volume is like", cfg.Device, cfg.Dir, readyTimeout, cfg.Device)
	}
	end(cmd, ends...)
	<-drained
	if errors.Is(err, errDied) {
		clearDied(cfg)
		return fmt.Errorf("%w: %s", err, lastWords(early.line(), logPath, logged, cmd.ProcessState))
	}
	return err
}

// logOf is where a daemon will log, and how much is there already.
func logOf(cfg *mountConfig) (path string, size int64) {
	path = cmp.Or(cfg.Log, runFile(os.Geteuid(), cfg.Dir, logEnd))
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		size = st.Size()
	}
	return path, size
}

// lastWords say why a daemon died: what it wrote before it had a log, or what Go's runtime wrote to its log, else how it ended.
func lastWords(early, log string, logged int64, state *os.ProcessState) string {
	why := early
	if why == "" {
		why = fmt.Sprintf("it said nothing (%v)", state)
		if b, err := os.ReadFile(log); err == nil && logged <= int64(len(b)) {
			for line := range strings.Lines(string(b[logged:])) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, slog.TimeKey+"=") {
					why = line
					break
				}
			}
			why += fmt.Sprintf("; its log is %q", log)
		}
	}
	if strings.Contains(why, "pthread_create failed") || strings.Contains(why, "failed to create new OS thread") {
		why += ": " + moreThreads()
	}
	return why
}

// clearDied takes away what a daemon that died before it answered has left: its mount, if there was one already, its lock and its sockets.
func clearDied(cfg *mountConfig) {
	files, err := claim(cfg.Dir)
	if err != nil {
		return // another daemon's place by now
	}
	if m, err := fs.MountedAt(cfg.Dir); err == nil && m != nil && fs.Ours(m) && m.Source == cfg.source() && fs.Dead(cfg.Dir) {
		_ = fs.DetachMount(m) // else the next mount or unmount tries
	}
	forgetUmount8(cfg.source(), cfg.Dir)
	files.release(true)
}

var errDied = errors.New("the daemon died before the mount answered")

// readAnswer reads the daemon's line, and prints its notes.
func readAnswer(r io.Reader, out io.Writer) error {
	b := bufio.NewReader(r)
	bar := &progressBar{out: out}
	defer bar.clear()
	for {
		line, err := b.ReadString('\n')
		if how, ok := strings.CutPrefix(line, progressPrefix); ok && err == nil {
			var p progress
			if json.Unmarshal([]byte(how), &p) == nil {
				bar.show(p)
			}
			continue
		}
		bar.clear()
		note, isNote := strings.CutPrefix(line, notePrefix)
		switch {
		case err != nil:
			return errDied
		case line == "\n":
			return nil
		case !isNote:
			return errors.New(strings.TrimSuffix(line, "\n"))
		}
		fmt.Fprint(out, "lanefs: ", note)
	}
}

// end waits for a daemon that has failed, or is to end; one that does not end by itself (nil) is told to, and then made to.
func end(cmd *exec.Cmd, by ...os.Signal) {
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	for _, sig := range by {
		if sig != nil {
			cmd.Process.Signal(sig)
		}
		select {
		case <-done:
			return
		case <-time.After(5 * time.Second):
		}
	}
}

// daemonMain is the daemon's main. It is not reached without daemonEnv.
func daemonMain(conf string) int {
	os.Unsetenv(daemonEnv)
	ready := os.NewFile(readyFD, "ready")
	var cfg mountConfig
	err := json.Unmarshal([]byte(conf), &cfg)
	if err == nil {
		run := serve
		if cfg.Raw {
			run = serveRaw
		}
		err = run(&cfg, &background{pipe: ready})
	}
	if err != nil {
		fmt.Fprintln(ready, errorText(err)) // the command has ended if the mount had answered
		return 1
	}
	return 0
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 1<<16 {
		t.b = t.b[len(t.b)-1<<15:]
	}
	return len(p), nil
}

// line is the first line of it, which of a Go panic says what happened; empty if there is none.
func (t *tail) line() string { return firstLine(string(t.b), "") }
