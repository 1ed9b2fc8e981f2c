package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Under systemd the log goes to journald by its own protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram of fields for each
// entry. So an entry has a priority, and each of its attributes is a field, LANEFS_DEVICE= and the like: `journalctl LANEFS_DEVICE=/srv/a.img`.

const journalSocket = "/run/systemd/journal/socket"

// toJournal says whether f is connected to journald: JOURNAL_STREAM names device and inode of the stream (systemd.exec(5)).
func toJournal(f *os.File, stream string) bool {
	var st unix.Stat_t
	return stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journalHandler sends entries to journald. What does not arrive (journald is being restarted, an entry is too long for a datagram) goes
// to plain as text.
type journalHandler struct {
	to    io.Writer // a datagram each
	plain slog.Handler
	with  []slog.Attr
	group string // before names, with its point
}

// newJournalHandler connects to journald.
func newJournalHandler(socket string, plain slog.Handler) (*journalHandler, error) {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return &journalHandler{plain: plain, to: newPatientLog(c, func(lost int64) []byte {
		var b bytes.Buffer
		journalField(&b, "MESSAGE", lostWords(lost))
		journalField(&b, "PRIORITY", fmt.Sprint(priority(slog.LevelWarn)))
		journalField(&b, "SYSLOG_IDENTIFIER", "lanefs")
		return b.Bytes()
	})}, nil
}

func (h *journalHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.plain.Enabled(ctx, l)
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	n.with = append([]slog.Attr(nil), h.with...)
	for _, a := range attrs {
		n.with = append(n.with, slog.Attr{Key: h.group + a.Key, Value: a.Value})
	}
	n.plain = h.plain.WithAttrs(attrs)
	return &n
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	n := *h
	n.group += name + "."
	n.plain = h.plain.WithGroup(name)
	return &n
}

func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	attrs := append([]slog.Attr(nil), h.with...)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, slog.Attr{Key: h.group + a.Key, Value: a.Value})
		return true
	})
	var b bytes.Buffer
	text := r.Message
	for _, a := range attrs {
		text += fmt.Sprintf(" %s=%s", a.Key, quoted(a.Value.Resolve().String()))
	}
	journalField(&b, "MESSAGE", text)
	journalField(&b, "PRIORITY", fmt.Sprint(priority(r.Level)))
	journalField(&b, "SYSLOG_IDENTIFIER", "lanefs")
	for _, a := range attrs {
		journalField(&b, journalName(a.Key), a.Value.Resolve().String())
	}
	if _, err := h.to.Write(b.Bytes()); err != nil {
		return h.plain.Handle(ctx, r)
	}
	return nil
}

// quoted quotes what would not be one word.
func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, " \t\n\"=") {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// priority is syslog's.
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l >= slog.LevelInfo:
		return 6
	}
	return 7
}

// journalName makes a field's name: capitals, digits and underscores, 64 at most.
func journalName(key string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, "LANEFS_"+key)
	return name[:min(len(name), 64)]
}

// journalField writes a field: NAME=value, or with a line break in the value its length in 8 bytes, little-endian.
func journalField(b *bytes.Buffer, name, value string) {
	if !strings.Contains(value, "\n") {
		fmt.Fprintf(b, "%s=%s\n", name, value)
		return
	}
	b.WriteString(name + "\n")
	_ = binary.Write(b, binary.LittleEndian, uint64(len(value)))
	b.WriteString(value + "\n")
}
