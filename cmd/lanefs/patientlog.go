package main

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// A log that nobody takes holds up nobody for long: a terminal that is stopped (Ctrl-S), a pipe whose reader sleeps, a file on a file system that
// hangs, or a journald that waits for this very mount, because its journal lies there. Lines go to a goroutine, and who has one waits for it, so that
// what is logged is there when the process dies; but not longer than logPatience, and not at all while an earlier one is late.

const (
	logPatience = time.Second
	logWaiting  = 256 // lines that are kept while one is late; those beyond are lost
)

// patientLog is an io.Writer to out. It has no end: a line may be late for as long as the process lives.
type patientLog struct {
	out   io.Writer
	lines chan logLine
	late  atomic.Bool
	lost  atomic.Int64                   // lines, since out took one
	tell  func(lost int64) (line []byte) // in out's form
}

type logLine struct {
	b   []byte
	err chan error // has room for one
}

func newPatientLog(out io.Writer, tell func(lost int64) []byte) *patientLog {
	p := &patientLog{out: out, lines: make(chan logLine, logWaiting), tell: tell}
	go p.run()
	return p
}

func (p *patientLog) run() {
	for l := range p.lines {
		_, err := p.out.Write(l.b)
		l.err <- err
		p.late.Store(false)
		if n := p.lost.Swap(0); n > 0 {
			_, _ = p.out.Write(p.tell(n))
		}
	}
}

// Write returns what out said of the line, if it said it in time.
func (p *patientLog) Write(b []byte) (int, error) {
	l := logLine{bytes.Clone(b), make(chan error, 1)}
	select {
	case p.lines <- l:
	default:
		p.lost.Add(1)
		return len(b), nil
	}
	if p.late.Load() {
		return len(b), nil
	}
	end := time.NewTimer(logPatience)
	defer end.Stop()
	select {
	case err := <-l.err:
		if err != nil {
			return 0, err
		}
	case <-end.C:
		p.late.Store(true)
	}
	return len(b), nil
}

func lostWords(n int64) string {
	return fmt.Sprintf("%d lines of this log are lost: nobody took them", n)
}
