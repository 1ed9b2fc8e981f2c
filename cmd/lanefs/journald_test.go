package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestJournal: an entry is a datagram with a priority and a field for each attribute, and goes to the terminal when journald has gone.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	var plain strings.Builder
	h, err := newJournalHandler(path, slog.NewTextHandler(&plain, nil))
	require.NoError(t, err)
	log := slog.New(h).With("device", "/srv/a b.img").WithGroup("lane")
	log.Warn("it waits", "no", 3, "why", "two\nlines")
	b := make([]byte, 4096)
	n, err := l.Read(b)
	require.NoError(t, err)
	require.Equal(t, "MESSAGE=it waits device=\"/srv/a b.img\" lane.no=3 lane.why=\"two\\nlines\"\nPRIORITY=4\nSYSLOG_IDENTIFIER=lanefs\n"+
		"LANEFS_DEVICE=/srv/a b.img\nLANEFS_LANE_NO=3\nLANEFS_LANE_WHY\n\x09\x00\x00\x00\x00\x00\x00\x00two\nlines\n", string(b[:n]))
	require.Empty(t, plain.String())
	for level, want := range map[slog.Level]int{slog.LevelDebug: 7, slog.LevelInfo: 6, slog.LevelWarn: 4, slog.LevelError: 3} {
		require.Equal(t, want, priority(level))
	}
	l.Close()
	log.Error("it ended", "no", 4)
	require.Contains(t, plain.String(), `level=ERROR msg="it ended" device="/srv/a b.img" lane.no=4`)
}

// TestJournalStands: a journald that takes nothing holds up an entry once, and has the others when it goes on.
func TestJournalStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	var plain strings.Builder
	h, err := newJournalHandler(path, slog.NewTextHandler(&plain, nil))
	require.NoError(t, err)
	log := slog.New(h)
	const entries = 5000 // more than the socket and we keep
	for n := range entries {
		log.Info("entry", "n", n)
	}
	b := make([]byte, 4096)
	for got, lost := 0, 0; got+lost < entries; {
		n, err := l.Read(b)
		require.NoError(t, err)
		var k int
		if _, err := fmt.Sscanf(string(b[:n]), "MESSAGE=%d lines of this log are lost", &k); err == nil {
			lost += k
			continue
		}
		require.True(t, strings.HasPrefix(string(b[:n]), fmt.Sprintf("MESSAGE=entry n=%d\n", got)), "%s", b[:n])
		got++
	}
	require.Empty(t, plain.String())
}

// TestToJournal: standard error is journald's only if JOURNAL_STREAM names it.
func TestToJournal(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(w.Fd()), &st))
	require.True(t, toJournal(w, fmt.Sprintf("%d:%d", st.Dev, st.Ino)))
	require.False(t, toJournal(w, fmt.Sprintf("%d:%d", st.Dev, st.Ino+1)))
	require.False(t, toJournal(w, ""))
}
