package fs

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestPanic: a request that panics ends the daemon, which says why. It must not be a mount on which everything waits.
func TestPanic(t *testing.T) {
	needFuse(t)
	needTool(t, "mkfs.ext4")
	for _, transport := range []string{"off", "on"} {
		t.Run("io_uring="+transport, func(t *testing.T) {
			if transport == "on" {
				uringtest.Enable(t)
			}
			dir, image := t.TempDir(), t.TempDir()
			cmd := helper(t, "panics", dir, image, transport)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { Detach(dir) })
			line, _ := bufio.NewReader(out).ReadString('\n')
			require.Equal(t, "mounted\n", line)
			_, err = os.Stat(filepath.Join(dir, "lost+found"))
			require.ErrorIs(t, err, syscall.ECONNABORTED)
			_, err = os.Stat(filepath.Join(dir, "lost+found"))
			require.ErrorIs(t, err, syscall.ENOTCONN)
			in.Close()
			require.Error(t, cmd.Wait())
			require.Contains(t, said.String(), "a request panicked")
			require.Contains(t, said.String(), "nil pointer")
			require.Contains(t, said.String(), "fs.(*rawFS)", "where")
		})
	}
}

// panicsHelper serves a mount whose requests panic, until its input ends.
func panicsHelper(args []string) {
	vol, err := openForHelper(args[1])
	if err != nil {
		die("%v", err)
	}
	transport := map[string]IOUring{"off": IOUringOff, "on": IOUringOn}[args[2]]
	s, err := Mount(args[0], vol, Options{IOUring: transport, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		die("%v", err)
	}
	s.vol = nil
	println0("mounted")
	io.Copy(io.Discard, os.Stdin)
}
