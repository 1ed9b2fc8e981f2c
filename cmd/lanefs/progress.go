package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

// progressBar shows how far long work has come: a bar on a terminal, elsewhere a line now and then. Work that is soon done shows nothing
// where there is no terminal.
type progressBar struct {
	out  io.Writer
	what string                  // what is counted: "inodes"; empty: progress.What
	say  func(p progress) string // nil: the numbers and what

	drawn bool
	lined time.Time // when the last line was printed, or the work began
}

const (
	barWidth  = 40
	lineEvery = 5 * time.Second // between two lines
)

func (b *progressBar) text(p progress) string {
	switch {
	case b.say != nil:
		return b.say(p)
	case p.Total == 0: // bytes, and nobody knows how many there will be
		return fmt.Sprintf("%s %s", units.Bytes(int64(p.Done)), cmp.Or(b.what, p.What))
	}
	return fmt.Sprintf("%d of %d %s", p.Done, p.Total, cmp.Or(b.what, p.What))
}

func (b *progressBar) show(p progress) {
	if f, ok := b.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		b.drawn = true
		if p.Total == 0 {
			fmt.Fprintf(f, "\r\033[K%s", b.text(p))
			return
		}
		n := int(barWidth * min(p.Done, p.Total) / p.Total)
		fmt.Fprintf(f, "\r\033[K[%s%s] %s", strings.Repeat("#", n), strings.Repeat(" ", barWidth-n), b.text(p))
		return
	}
	now := time.Now()
	if b.lined.IsZero() {
		b.lined = now
	}
	if now.Sub(b.lined) >= lineEvery {
		b.lined = now
		fmt.Fprintf(b.out, "lanefs: %s\n", b.text(p))
	}
}

// clear takes the bar away.
func (b *progressBar) clear() {
	if b.drawn {
		fmt.Fprint(b.out, "\r\033[K")
		b.drawn = false
	}
}
