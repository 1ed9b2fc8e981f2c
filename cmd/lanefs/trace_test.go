package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTrace: the slowest request of a mount is shown with what each layer did; a second trace at the same time is refused.
func TestTrace(t *testing.T) {
	p := newPlace(t)
	dir := p.mkdir("m")
	p.ok("mount", "--gpu", "host", p.image("image", 64), dir)
	require.Contains(t, p.fails("trace", "--for", "300ms", dir), "no request came")
	require.Contains(t, p.fails("trace", "--for", "-1s", dir), "want more than 0")
	first := p.command("trace", "--for", "20s", "--slower", "1ns", dir)
	out := p.path("trace.out")
	first.Args = append(first.Args[:len(first.Args)-1], "-o", out, dir)
	shown := p.path("shown")
	f, err := os.Create(shown)
	require.NoError(t, err)
	defer f.Close()
	first.Stdout, first.Stderr = f, f
	require.NoError(t, first.Start())
	p.children = append(p.children, first)
	p.eventually("a second trace is refused", func() bool {
		_, stderr, err := p.run("trace", "--for", "1ms", dir)
		return err != nil && strings.Contains(stderr, "somebody else traces")
	})
	file, err := os.OpenFile(filepath.Join(dir, "file"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	_, err = file.Write(make([]byte, 64<<10))
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
	done := make(chan error, 1)
	go func() { done <- first.Wait() }()
	select {
	case err := <-done:
		text, _ := os.ReadFile(shown)
		require.NoError(t, err, "%s", text)
		require.Regexp(t, `the slowest of \d+ requests: fuse \w+, .*, at \d\d:`, string(text))
		require.Regexp(t, `of it: .*on a CPU`, string(text))
	case <-time.After(15 * time.Second):
		t.Fatal("--slower did not end the trace")
	}
	p.umount(dir)
}
