package sharetest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// Program is a program with which a test talks in lines. It is killed when the test ends.
type Program struct {
	*exec.Cmd
	t     testing.TB
	in    io.Writer
	lines *bufio.Scanner
}

// Start starts a program.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &Program{cmd, t, in, bufio.NewScanner(out)}
}

// Says is the program's next line.
func (p *Program) Says() string {
	p.t.Helper()
	require.True(p.t, p.lines.Scan(), "the program ended")
	return p.lines.Text()
}

// GoOn gives the program a line.
func (p *Program) GoOn() { fmt.Fprintln(p.in) }

// HoldFirst holds back the first call of Do with a request of a kind, as Hold does; others' are not held back. await returns when there was one.
func (m *Mount) HoldFirst(op blockdev.Op) (await func(what string), release func()) {
	var first atomic.Bool
	held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == op && first.CompareAndSwap(false, true) })
	return func(what string) {
		m.t.Helper()
		select {
		case <-held:
		case <-time.After(time.Minute):
			require.Fail(m.t, "no request came to the device", what)
		}
	}, release
}
