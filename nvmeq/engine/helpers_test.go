package engine_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// rig is a controller in software with everything on it, closed and checked for leaks when the test ends.
type rig struct {
	rt      gpu.Runtime
	soft    *softctl.Controller
	ctrl    *controller.Controller
	eng     *engine.Engine
	log     *logBuffer
	rules   *softctl.Rules
	block   int64
	threads bool   // the controller's own
	lists   uint64 // bytes of Dataset Management ranges: lanes count them as written, the controller counts user data
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) count(s string) int { return strings.Count(l.String(), s) }

const imageSize = 16 << 20

// newImage makes a sparse file of imageSize bytes.
func newImage(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, imageSize))
	return path
}

func newRig(t testing.TB, so softctl.Options, ec engine.Config) *rig {
	t.Helper()
	r := openRig(t, so)
	var err error
	ec.Team = testTeam(t)
	r.eng, err = engine.New(r.ctrl, ec)
	require.NoError(t, err)
	return r
}

// openRig is newRig without an engine.
func openRig(t testing.TB, so softctl.Options) *rig {
	t.Helper()
	r := &rig{log: &logBuffer{}, rules: &softctl.Rules{}, block: int64(max(so.BlockSize, 512))}
	so.Injector = r.rules
	r.threads = so.Threads > 0
	so.Log = slog.New(slog.DiscardHandler)
	rt := openRuntime(t)
	r.rt = rt
	var err error
	t.Cleanup(func() { require.NoError(t, rt.Close(), "the runtime finds leaks") })
	r.soft, err = softctl.Open(newImage(t), served(t, rt, so))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.soft.Close()) })
	r.ctrl, err = controller.Open(controller.Config{Runtime: rt, Transport: r.soft,
		Log: slog.New(slog.NewTextHandler(r.log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.ctrl.Close()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// stepped says that lanes and controller take turns on the caller's thread.
func (r *rig) stepped() bool { return !r.threads && r.rt.Facts().CallerDriven }

// chunk allocates data memory for the test.
func (r *rig) chunk(t testing.TB, n int64) *controller.Chunk {
	c, err := r.ctrl.AllocData(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// rw is a Read or Write of n bytes at c.
func (r *rig) rw(op nvme.Opcode, lba uint64, c *controller.Chunk, off, n int64) engine.Command {
	return engine.Command{Op: op, NSID: 1, SLBA: lba, NLB: uint32(n / r.block), Data: c.IOVA() + nvme.IOVA(off), Len: uint32(n)}
}

// fill writes a pattern that tells every 8 bytes apart.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (i % 8 * 8))
	}
}
