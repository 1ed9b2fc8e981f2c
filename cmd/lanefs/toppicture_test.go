package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A screen as an SVG picture: cells of a fixed size, in a window.
const (
	cellWidth, cellHeight = 8.4, 18.0
	screenEdge            = 12.0
)

// screenSVG draws the cells of a screen, light or dark as the reader's page is.
func screenSVG(cells []tcell.SimCell, width int) string {
	height := len(cells) / width
	var b strings.Builder
	w, h := float64(width)*cellWidth+2*screenEdge, float64(height)*cellHeight+2*screenEdge
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n", w, h, w, h)
	b.WriteString(`  <title>The screen of lanefs top while a program writes, reads and syncs files</title>
  <style>
    text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
    .window { fill: #f6f8fa; stroke: #d1d9e0 }
    .bold { font-weight: bold }
    .bar { fill: #1f2328 }
    .reverse { fill: #f6f8fa }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .window { fill: #0d1117; stroke: #3d444d }
      .bar { fill: #f0f6fc }
      .reverse { fill: #0d1117 }
    }
  </style>
`)
	fmt.Fprintf(&b, "  <rect class=\"window\" x=\"0.5\" y=\"0.5\" width=\"%.0f\" height=\"%.0f\" rx=\"6\"/>\n", w-1, h-1)
	for y := range height {
		line := ""
		for x := range width {
			r := ' '
			if c := cells[y*width+x]; len(c.Runes) > 0 {
				r = c.Runes[0]
			}
			line += string(r)
		}
		_, _, attr := cells[y*width].Style.Decompose()
		class := ""
		switch {
		case attr&tcell.AttrReverse != 0:
			class = ` class="reverse"`
			fmt.Fprintf(&b, "  <rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", screenEdge-4, screenEdge, float64(width)*cellWidth+8, cellHeight)
		case attr&tcell.AttrBold != 0:
			class = ` class="bold"`
		}
		if line = strings.TrimRight(line, " "); line == "" {
			continue
		}
		var text strings.Builder
		_ = xml.EscapeText(&text, []byte(line))
		fmt.Fprintf(&b, "  <text%s x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" xml:space=\"preserve\">%s</text>\n", class, screenEdge, screenEdge+float64(y)*cellHeight+13,
			float64(len([]rune(line)))*cellWidth, text.String())
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// TestTopPicture draws docs/top.svg, which README shows, from the screen of a real mount: make pictures.
func TestTopPicture(t *testing.T) {
	to := os.Getenv("LANEFS_TOP_SVG")
	if to == "" {
		t.Skip("SKIPPED: LANEFS_TOP_SVG names no picture to draw: make pictures")
	}
	const dir = "/mnt/data" // a name that is read
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { os.Remove(dir) })
	p := newPlace(t)
	p.dirs = append(p.dirs, dir)
	img := "/srv/disk.img"
	require.NoError(t, os.Symlink(p.image("disk.img", 256), img))
	t.Cleanup(func() { os.Remove(img) })
	p.ok("mount", "--gpu", "host", "-o", "vram=64M", img, dir)
	const size = 32 << 20
	weights := filepath.Join(dir, "weights")
	require.NoError(t, os.WriteFile(weights, make([]byte, size), 0o600))
	p.ok("vram", "pin", weights)
	direct, err := os.OpenFile(weights, os.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(t, err)
	page, err := unix.Mmap(-1, 0, 128<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // files of 64 KiB are written, 128 KiB are read round the page cache, and a sync now and then
		defer close(done)
		defer direct.Close()
		block := make([]byte, 64<<10)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			path := filepath.Join(dir, fmt.Sprint("file", n%64))
			os.WriteFile(path, block, 0o600)
			direct.ReadAt(page, int64(n)*int64(len(page))%size)
			if n%16 == 0 {
				if f, err := os.Open(path); err == nil {
					f.Sync()
					f.Close()
				}
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
		p.umount(dir)
	}()
	t.Setenv("XDG_RUNTIME_DIR", p.path("run"))
	m, err := ourMount(dir)
	require.NoError(t, err)
	screen := tcell.NewSimulationScreen("UTF-8")
	require.NoError(t, screen.Init())
	screen.SetSize(narrow, tall)
	watch := &top{m: m}
	require.NoError(t, watch.read())
	ended := make(chan error, 1)
	go func() { ended <- watch.live(screen, time.Second, 0) }()
	time.Sleep(3500 * time.Millisecond) // the third reading is on the screen
	cells, width, _ := screen.GetContents()
	svg := screenSVG(cells, width)
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	require.NoError(t, <-ended)
	require.Contains(t, svg, "queue pairs")
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{})))
	require.NoError(t, os.WriteFile(to, []byte(svg), 0o644))
}
