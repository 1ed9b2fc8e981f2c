package gate

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStartDies: a process that ends before it is ready is noticed by its end. Nobody waits for the time that it may take.
func TestStartDies(t *testing.T) {
	wasReady, wasProgram := ready.Load(), program
	defer func() { ready.Store(wasReady); program = wasProgram }()
	ready.Store(true)
	program = "/bin/false"
	socket := filepath.Join(t.TempDir(), "socket")
	_, err := Start(0, func() (*net.UnixListener, error) {
		return net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	}, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "it did not say that it was ready")
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
}
