package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progressBar shows how far long work has come: a bar on a terminal, elsewhere a line now and then. Work that is soon done shows nothing
// where there is no terminal.
type progressBar struct {
	out  io.Writer
	what string                  // what is counted: "inodes"
	say  func(p progress) string // nil: the numbers and what

	drawn bool
	lined time.Time // when the last line was printed, or the work began
}

const (
	barWidth  = 40
	lineEvery = 5 * time.Second // between two lines
)

func (b *progressBar) text(p progress) string {
	if b.say != nil {
		return b.say(p)
	}
	return fmt.Sprintf("%d of %d %s", p.Done, p.Total, b.what)
}

func (b *progressBar) show(p progress) {
	if p.Total == 0 {
		return
	}
	if f, ok := b.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		n := int(barWidth * min(p.Done, p.Total) / p.Total)
		fmt.Fprintf(f, "\r\033[K[%s%s] %s", strings.Repeat("#", n), strings.Repeat(" ", barWidth-n), b.text(p))
		b.drawn = true
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
