package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	topInterval  = time.Second            // between two readings
	leastTop     = 100 * time.Millisecond // a shorter interval would measure the measuring
	plainEvery   = 20                     // lines between two headings of the plain form
	narrow, tall = 80, 24                 // the least screen that shows everything
)

func topCommand() *cobra.Command {
	every, count := topInterval, 0
	c := &cobra.Command{
		Use:   "top [--interval TIME] [--count N] DIR",
		Short: "watch a mount: throughput, requests and latency of each layer",
		Long: "On a terminal it shows a screen that is updated each interval; q ends it. Otherwise it prints a line for each interval. Figures are of the " +
			"interval; latencies are at most twice too long. lanefs stat prints the figures since the mount.",
		Args: exactly("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if every < leastTop {
				return fmt.Errorf("--interval %v is too short: want %v or more", every, leastTop)
			}
			m, err := ourMount(args[0])
			if err != nil {
				return err
			}
			t := &top{m: m}
			if err := t.read(); err != nil {
				return fmt.Errorf("%q: %w", args[0], err)
			}
			if f := outputFile(c.OutOrStdout()); f != nil && term.IsTerminal(int(f.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
				s, err := tcell.NewScreen()
				if err == nil {
					err = s.Init()
				}
				if err == nil {
					return t.live(s, every, count)
				}
				fmt.Fprintf(c.ErrOrStderr(), "lanefs: plain lines, for this terminal can't be drawn on: %v\n", err)
			}
			return t.plain(c.OutOrStdout(), every, count)
		},
	}
	c.Flags().DurationVar(&every, "interval", every, "time between two readings")
	c.Flags().IntVar(&count, "count", 0, "end after this many readings; 0: no end")
	return c
}

// top reads a mount's counters again and again.
type top struct {
	m           *mountinfo.Info
	before, now reading
}

// reading is the counters at one time.
type reading struct {
	at   time.Time
	stat *report
	vram *vramReport // nil: the mount gives out no device memory
}

// read takes a reading.
func (t *top) read() error {
	stat, err := statOf(t.m)
	if err != nil {
		return err
	}
	next := reading{at: time.Now(), stat: stat}
	if r, err := query(t.m, request{Op: "vram"}, requestTimeout, nil); err == nil {
		next.vram = r.VRAM
	}
	t.before, t.now = t.now, next
	return nil
}

// live draws on a screen until q, Escape or Ctrl-C, or until the mount is gone.
func (t *top) live(s tcell.Screen, every time.Duration, count int) error {
	defer s.Fini()
	events := make(chan tcell.Event)
	end := make(chan struct{})
	defer close(end)
	go s.ChannelEvents(events, end)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; {
		draw(s, t.view(s.Size()))
		select {
		case <-tick.C:
			if err := t.read(); err != nil {
				return err
			}
			if n++; n == count {
				return nil
			}
		case e, open := <-events:
			switch e := e.(type) {
			case *tcell.EventResize:
				s.Sync()
			case *tcell.EventKey:
				if e.Rune() == 'q' || e.Key() == tcell.KeyEscape || e.Key() == tcell.KeyCtrlC {
					return nil
				}
			}
			if !open {
				return nil
			}
		}
	}
}

// draw puts lines on the screen: the first of a section, which begins with no space, in bold.
func draw(s tcell.Screen, lines []string) {
	s.Clear()
	for y, line := range lines {
		style := tcell.StyleDefault
		if y == 0 {
			style = style.Reverse(true)
		} else if line != "" && line[0] != ' ' {
			style = style.Bold(true)
		}
		x := 0
		for _, r := range line {
			s.SetContent(x, y, r, nil, style)
			x++
		}
		if w, _ := s.Size(); y == 0 {
			for ; x < w; x++ {
				s.SetContent(x, y, ' ', nil, style)
			}
		}
	}
	s.Show()
}

// plain prints a line for each interval.
func (t *top) plain(out io.Writer, every time.Duration, count int) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; count == 0 || n < count; n++ {
		select {
		case <-interrupted:
			return nil
		case <-tick.C:
		}
		if err := t.read(); err != nil {
			return err
		}
		if n%plainEvery == 0 {
			if _, err := fmt.Fprintln(out, plainHeading); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, t.line()); err != nil {
			return err
		}
	}
	return nil
}
