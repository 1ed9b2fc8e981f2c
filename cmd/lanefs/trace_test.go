package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTrace: the slowest request of a mount is shown with what each layer did, and a request that is slow enough ends the recording.
func TestTrace(t *testing.T) {
	p := newPlace(t)
	dir := p.mkdir("m")
	img := p.image("image", 64)
	p.ok("mount", "--gpu", "host", img, dir)
	p.eventually("a trace of nothing", func() bool {
		_, said, err := p.run("trace", "--for", "300ms", dir) // by chance a request comes, of a program that looks at all mounts, say
		return err != nil && strings.Contains(said, "no request came")
	})
	require.Contains(t, p.fails("trace", "-o", img, dir), "begins with something else than", "it is not the image that becomes the trace")
	require.Contains(t, p.fails("trace", "--for", "-1s", dir), "want more than 0")

	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for k := 0; ; k++ {
			select {
			case <-stop:
				return
			default:
				os.WriteFile(filepath.Join(dir, fmt.Sprint("file", k%8)), make([]byte, 16<<10), 0o600)
			}
		}
	}()
	out := p.path("trace.out")
	var shown string
	for range 2 { // the second trace takes the place of the first
		shown = p.ok("trace", "--for", "2m", "--slower", "1ns", "-o", out, dir)
	}
	close(stop)
	<-done
	require.Regexp(t, `the slowest of \d+ requests: fuse \w+, .*, at \d\d:`, shown)
	require.Regexp(t, `of it: .*on a CPU`, shown)
	require.FileExists(t, out)
	p.umount(dir)
}

// TestTraceAlone: a mount is traced by one command at a time, and the end of that command ends its trace.
func TestTraceAlone(t *testing.T) {
	p := newPlace(t)
	dir := p.mkdir("m")
	p.ok("mount", "--gpu", "host", p.image("image", 64), dir)
	t.Setenv("XDG_RUNTIME_DIR", p.path("run"))
	m, err := ourMount(dir)
	require.NoError(t, err)
	first, err := dial(m)
	require.NoError(t, err)
	defer first.close()
	req := request{Op: "trace", For: 10 * time.Minute}
	require.NoError(t, first.send(req))
	r, err := first.receive(req, time.Now().Add(requestTimeout))
	require.NoError(t, err)
	require.NotNil(t, r.Progress, "it records")
	const busy = "somebody else traces this mount"
	require.Contains(t, p.fails("trace", "--for", "1ms", dir), busy)
	first.close() // as the kernel does for a command that was killed
	p.eventually("the end of its trace", func() bool {
		_, said, _ := p.run("trace", "--for", "1ms", dir) // by chance a request comes, and there is no error
		return !strings.Contains(said, busy)
	})

	// The end of the mount ends it, too, and the command says so.
	c := p.command("trace", "--for", "10m", "--slower", "10m", dir)
	var said bytes.Buffer
	c.Stderr = &said
	require.NoError(t, c.Start())
	p.children = append(p.children, c)
	p.eventually("the trace", func() bool {
		_, said, _ := p.run("trace", "--for", "1ms", dir)
		return strings.Contains(said, busy)
	})
	p.umount(dir)
	require.Error(t, c.Wait())
	require.Regexp(t, `no request came in .*, until the mount ended|none of \d+ requests took 10m0s`, said.String())
}
