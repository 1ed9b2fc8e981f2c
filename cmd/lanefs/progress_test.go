package main

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgressLines: where there is no terminal short work shows nothing, long work a line now and then.
func TestProgressLines(t *testing.T) {
	var out bytes.Buffer
	b := &progressBar{out: &out}
	b.show(progress{What: "inodes", Done: 1, Total: 4})
	b.clear()
	require.Empty(t, out.String())
	b.lined = time.Now().Add(-lineEvery)
	b.show(progress{What: "inodes", Done: 2, Total: 4})
	b.show(progress{What: "inodes", Done: 3, Total: 4})
	require.Equal(t, "lanefs: 2 of 4 inodes\n", out.String())
	b.lined = time.Now().Add(-lineEvery)
	b.show(progress{What: "are written", Done: 3 << 20})
	require.Contains(t, out.String(), "lanefs: 3 MiB are written\n")
}

// TestDaemonProgress: what the daemon says of its work before it answers is no error and no note; the answer comes after it.
func TestDaemonProgress(t *testing.T) {
	var pipe, out bytes.Buffer
	writeProgress(&pipe, progress{What: "blocks", Done: 1, Total: 2})
	pipe.WriteString(notePrefix + "read-only\n")
	writeProgress(&pipe, progress{What: "blocks", Done: 2, Total: 2})
	said := pipe.String()
	require.NoError(t, readAnswer(strings.NewReader(said+"\n"), &out))
	require.Equal(t, "lanefs: read-only\n", out.String())
	require.EqualError(t, readAnswer(strings.NewReader(said+"no journal\n"), &out), "no journal")
	require.ErrorIs(t, readAnswer(strings.NewReader(said), &out), errDied)
}

// TestForegroundProgress: systemd hears how far the work has come, and waits for longer.
func TestForegroundProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	inForeground(io.Discard).progress(progress{What: "blocks", Done: 1, Total: 2})
	b := make([]byte, 200)
	n, err := l.Read(b)
	require.NoError(t, err)
	require.Equal(t, "STATUS=1 of 2 blocks\nEXTEND_TIMEOUT_USEC=60000000", string(b[:n]))
}
