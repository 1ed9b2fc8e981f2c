package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// environment is what differs between a mount in the foreground and a daemon: where it logs, and how it says that the mount answers.
type environment interface {
	// logTo starts logging and says to which file. files names the one that is used unless the user named another.
	logTo(cfg *mountConfig, files *runFiles) (log *slog.Logger, path string, err error)
	progress(p progress) // of opening the volume
	ready(notes []string) error
	stopping() // the mount is gone, and the volume is about to be closed
}

// foreground is a terminal, or a service of systemd: the log goes there.
type foreground struct {
	out io.Writer
	bar *progressBar
}

func inForeground(out io.Writer) foreground { return foreground{out, &progressBar{out: out}} }

// progress draws the bar, or a line now and then. systemctl status shows it, and systemd waits for longer.
func (f foreground) progress(p progress) {
	f.bar.show(p)
	if p.Done == p.Total {
		f.bar.clear()
	}
	_ = notify(fmt.Sprintf("STATUS=%s\nEXTEND_TIMEOUT_USEC=%d", f.bar.text(p), extendTimeout.Microseconds()))
}

// extendTimeout is how long systemd waits for the next progress, beyond its own limit for the start.
const extendTimeout = time.Minute

func (f foreground) logTo(cfg *mountConfig, files *runFiles) (*slog.Logger, string, error) {
	files.Log = ""
	if cfg.Log == "" {
		return newLogger(f.out), "", nil
	}
	w, err := cfg.openLog(cfg.Log)
	return newLogger(w), cfg.Log, err
}

// ready tells systemd, if that started us (sd_notify(3)). What notes say is in the log.
func (f foreground) ready([]string) error { return notify("READY=1\nSTATUS=") }

func (f foreground) stopping() { _ = notify("STOPPING=1") }

// background is a daemon: the log is a file, and so is what the Go runtime prints when it dies.
type background struct{ pipe *os.File }

func (b *background) logTo(cfg *mountConfig, files *runFiles) (*slog.Logger, string, error) {
	if cfg.Log != "" {
		files.Log = ""
	}
	path := cmp.Or(cfg.Log, files.Log)
	w, err := cfg.openLog(path)
	if err != nil {
		return nil, "", err
	}
	return newLogger(w), path, unix.Dup3(int(w.Fd()), 2, 0)
}

func (b *background) progress(p progress) { writeProgress(b.pipe, p) }

// ready tells the command that started the daemon.
func (b *background) ready(notes []string) error {
	var answer strings.Builder
	for _, n := range notes {
		answer.WriteString(notePrefix + strings.ReplaceAll(n, "\n", " ") + "\n")
	}
	_, err := b.pipe.WriteString(answer.String() + "\n")
	b.pipe.Close()
	return err
}

func (b *background) stopping() {}

// openLog opens the log, which must not be what is mounted, nor another image: lines at its end would make it longer.
func (cfg *mountConfig) openLog(path string) (*os.File, error) {
	if st, err := os.Stat(path); err == nil {
		device := isBlock(st)
		for _, u := range cfg.units() {
			at, err := os.Stat(u.Device)
			device = device || err == nil && os.SameFile(st, at)
		}
		if device {
			return nil, fmt.Errorf("log %q: it is a device: name a file of its own", path)
		}
		if st.Mode().IsRegular() && isImage(path) {
			return nil, fmt.Errorf("log %q: it is the image of a disk or of a file system: name a file of its own", path)
		}
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	// Without O_NONBLOCK the opening of a FIFO waits for its reader, for ever where none comes.
	fd, err := unix.Open(path, flags, 0o600)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, flags, 0o600)
	}
	if errors.Is(err, unix.ENXIO) {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeNamedPipe != 0 {
			return nil, fmt.Errorf("log %q: nobody reads this FIFO: start its reader first", path)
		}
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // lines wait: patientLog knows how long
	}
	if err != nil {
		return nil, fmt.Errorf("log %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// warnings logs what a command has to say beside its output.
func warnings(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// newLogger makes the logger of a mount: text, or fields where w is journald's. All layers below get it.
func newLogger(w io.Writer) *slog.Logger {
	text := textHandler(newPatientLog(w, func(lost int64) []byte { return []byte("level=WARN msg=" + quoted(lostWords(lost)) + "\n") }))
	if f, ok := w.(*os.File); ok && toJournal(f, os.Getenv("JOURNAL_STREAM")) {
		if h, err := newJournalHandler(journalSocket, text); err == nil {
			return slog.New(h)
		}
	}
	return slog.New(text)
}

func textHandler(w io.Writer) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.StringValue(a.Value.Time().Format(time.RFC3339))
		}
		return a
	}})
}
