package metrics

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClose: when Close returns, the socket is gone and the address is free, also of a server that has not yet begun to accept.
func TestClose(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "metrics")
	read := func() (*Page, error) { return nil, errors.New("nobody asks") }
	at := "127.0.0.1:0"
	for range 200 {
		s, err := Serve(socket, nil, read, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.NoFileExists(t, socket)

		s, err = Serve(at, nil, read, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		at = s.Addr()
		require.NoError(t, s.Close())
		l, err := net.Listen("tcp", at)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	require.NoError(t, (*Server)(nil).Close())
}
