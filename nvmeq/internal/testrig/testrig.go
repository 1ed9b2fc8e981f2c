// Package testrig opens a controller in software, with an engine on it. Only the tests of packages controller and engine use it.
package testrig

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Rig is a controller in software with everything on it, closed and checked for leaks when the test ends.
type Rig struct {
	Runtime    gpu.Runtime
	Soft       *softctl.Controller
	Controller *controller.Controller
	Engine     *engine.Engine
	Log        *LogBuffer
	Rules      *softctl.Rules
	Block      int64
	Threads    bool // the controller works on threads of its own
}

// LogBuffer collects log lines.
type LogBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Count is how often s occurs.
func (l *LogBuffer) Count(s string) int { return strings.Count(l.String(), s) }

// ImageSize is the size of images in bytes.
const ImageSize = 16 << 20

// NewImage makes a sparse file of ImageSize bytes.
func NewImage(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, ImageSize))
	return path
}

// NewLoop makes a loop device over such a file, which it names, too. It skips the test where there can be none.
func NewLoop(t testing.TB) (dev, file string) {
	t.Helper()
	file = NewImage(t)
	dev, _ = looptest.Attach(t, file)
	return dev, file
}

// New opens a controller with an engine.
func New(t testing.TB, so softctl.Options, ec engine.Config) *Rig {
	t.Helper()
	return NewOn(t, NewImage(t), so, ec)
}

// NewOn is New on an image or block device.
func NewOn(t testing.TB, image string, so softctl.Options, ec engine.Config) *Rig {
	t.Helper()
	r := OpenOn(t, image, so)
	var err error
	ec.Team = Team(t)
	r.Engine, err = engine.New(r.Controller, ec)
	require.NoError(t, err)
	return r
}

// Open opens a controller without an engine.
func Open(t testing.TB, so softctl.Options) *Rig {
	t.Helper()
	return OpenOn(t, NewImage(t), so)
}

// OpenOn is Open on an image or block device.
func OpenOn(t testing.TB, image string, so softctl.Options) *Rig {
	t.Helper()
	r := &Rig{Log: &LogBuffer{}, Rules: &softctl.Rules{}, Block: int64(max(so.BlockSize, 512))}
	so.Injector = r.Rules
	r.Threads = so.Threads > 0
	so.Log = slog.New(slog.DiscardHandler)
	rt := OpenRuntime(t)
	r.Runtime = rt
	var err error
	t.Cleanup(func() { require.NoError(t, rt.Close(), "the runtime finds leaks") })
	r.Soft, err = softctl.Open(image, Served(t, rt, so))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Soft.Close()) })
	r.Controller, err = controller.Open(controller.Config{Runtime: rt, Transport: r.Soft,
		Log: slog.New(slog.NewTextHandler(r.Log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Controller.Close()
		if t.Failed() {
			t.Log(r.Log.String())
		}
	})
	return r
}

// Stepped says that lanes and controller take turns on the caller's thread.
func (r *Rig) Stepped() bool { return !r.Threads && r.Runtime.Facts().CallerDriven }

// Chunk allocates data memory for the test.
func (r *Rig) Chunk(t testing.TB, n int64) *controller.Chunk {
	c, err := r.Controller.AllocData(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// RW is a Read or Write of n bytes at c.
func (r *Rig) RW(op nvme.Opcode, lba uint64, c *controller.Chunk, off, n int64) engine.Command {
	return engine.Command{Op: op, NSID: 1, SLBA: lba, NLB: uint32(n / r.Block), Data: c.IOVA() + nvme.IOVA(off), Len: uint32(n)}
}
