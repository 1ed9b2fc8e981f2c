package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/latency"
)

// TestTopView: whatever there is to show, the screen has its size, and nothing of it is lost on 80 × 24.
func TestTopView(t *testing.T) {
	at := time.Now()
	of := func(n uint64) *report {
		r := &report{Dir: "/mnt", Mounted: at.Add(-time.Hour), Simulated: true, Device: deviceReport{Name: "image", Queues: 64, Depth: 127}}
		r.FUSE = fuseReport{Transport: "io_uring", ReadBytes: int64(n) << 20}
		l := latency.NewLayer("fuse", "read", "write", "lookup", "getattr", "create", "unlink", "fsync", "open")
		for k := range 8 {
			for range n {
				l.Add(k, time.Duration(k+1)*time.Millisecond)
			}
		}
		r.Times = l.Summaries()
		for q := range uint16(64) {
			r.Queues = append(r.Queues, queueCounted{QID: q + 1, queueCounters: queueCounters{Commands: n * uint64(q)}})
		}
		return r
	}
	top := &top{before: reading{at: at.Add(-2 * time.Second), stat: of(10)}, now: reading{at: at, stat: of(30), vram: &vramReport{}}}
	lines := top.view(80, 24)
	require.LessOrEqual(t, len(lines), 24)
	text := strings.Join(lines, "\n")
	for _, want := range []string{"image on /mnt", "simulated", "fuse", "controller", "journal", "VRAM", "others", "10 MiB/s"} {
		require.Contains(t, text, want)
	}
	require.Regexp(t, `(?m)^ fuse +80 +10 MiB/s`, text, "20 more of each of 8 kinds in two seconds")
	for _, size := range [][2]int{{1, 1}, {20, 5}, {79, 10}, {80, 24}, {200, 60}} {
		lines := top.view(size[0], size[1])
		require.LessOrEqual(t, len(lines), size[1])
		for _, l := range lines {
			require.LessOrEqual(t, len([]rune(l)), size[0])
		}
	}
	top.before = reading{}
	require.NotPanics(t, func() { top.view(80, 24); top.line() })
}

// TestTop watches a real mount: on a screen, in a terminal, and into a pipe.
func TestTop(t *testing.T) {
	p := newPlace(t)
	dir := p.mkdir("m")
	p.ok("mount", "--gpu", "host", p.image("image", 64), dir)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				os.WriteFile(filepath.Join(dir, "file"), make([]byte, 64<<10), 0o600)
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
		p.umount(dir)
	}()

	plain := p.ok("top", "--interval", "100ms", "--count", "3", dir)
	lines := strings.Split(strings.TrimSpace(plain), "\n")
	require.Len(t, lines, 4, "%s", plain)
	require.Equal(t, len(lines[0]), len([]rune(lines[3])), "columns below their headings:\n%s", plain)
	require.Contains(t, p.fails("top", "--interval", "1ms", dir), "too short")
	require.Contains(t, p.fails("top", p.dir), "not")

	t.Setenv("XDG_RUNTIME_DIR", p.path("run"))
	m, err := ourMount(dir)
	require.NoError(t, err)
	screen := &testScreen{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	require.NoError(t, screen.Init())
	screen.SetSize(80, 24)
	watch := &top{m: m}
	require.NoError(t, watch.read())
	ended := make(chan error, 1)
	go func() { ended <- watch.live(screen, 100*time.Millisecond, 0) }()
	require.Eventually(t, func() bool {
		text := screen.text()
		return strings.Contains(text, "queue pairs") && strings.Contains(text, " write")
	}, time.Minute, 50*time.Millisecond)
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	require.NoError(t, <-ended)

	if _, err := exec.LookPath("script"); err == nil {
		c := exec.Command("script", "-qec", p.bin+" top --count 1 --interval 200ms "+dir, "/dev/null")
		c.Env = append(p.env, "TERM=xterm", "NO_COLOR=1", "LINES=24", "COLUMNS=80")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "queue pairs")
	}
}

// testScreen is a screen whose contents may be read while it is drawn.
type testScreen struct {
	tcell.SimulationScreen
	mu sync.Mutex
}

func (s *testScreen) Show() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.SimulationScreen.Show()
}

func (s *testScreen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	cells, w, _ := s.GetContents()
	var b strings.Builder
	for i, c := range cells {
		if len(c.Runes) > 0 {
			b.WriteRune(c.Runes[0])
		}
		if w > 0 && i%w == w-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
