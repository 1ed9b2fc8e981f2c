package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/trace"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/slowest"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

const (
	traceFor    = 10 * time.Second // by default
	maxTraceFor = time.Hour
	traceStep   = 200 * time.Millisecond // between two looks whether the client still waits
	traceKept   = 16 << 20               // bytes of trace that are kept, the newest: what came before is lost
)

// tracing is held while a trace is recorded: the process can record one.
var tracing sync.Mutex

// trace records what the daemon does, for so long or until a request has taken slower; 0 waits for none. It gives the newest part.
func (d *daemon) trace(dur, slower time.Duration, tell func(progress) bool) ([]byte, error) {
	if dur <= 0 || dur > maxTraceFor {
		return nil, fmt.Errorf("a trace of %v: want at most %v", dur, maxTraceFor)
	}
	if !tracing.TryLock() {
		return nil, errors.New("somebody else traces this mount; wait until that has ended")
	}
	defer tracing.Unlock()
	recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: dur, MaxBytes: traceKept})
	if err := recorder.Start(); err != nil {
		return nil, err
	}
	defer recorder.Stop()
	var met <-chan struct{}
	if slower > 0 {
		var stop func()
		met, stop = d.srv.WatchSlow(slower) // from here on, so that the request that ends the recording is in it
		defer stop()
	}
	begin := time.Now()
	look := time.NewTicker(traceStep)
	defer look.Stop()
	for found := false; !found; {
		select {
		case <-met:
			found = true
		case <-look.C:
		}
		since := min(time.Since(begin), dur)
		if !tell(progress{Done: uint64(since), Total: uint64(dur)}) {
			return nil, errors.New("the command that asked for the trace has ended")
		}
		if since == dur || d.ended.Load() {
			break
		}
	}
	var b bytes.Buffer
	_, err := recorder.WriteTo(&b)
	return b.Bytes(), err
}

func traceCommand() *cobra.Command {
	req := request{Op: "trace", For: traceFor}
	var file string
	c := &cobra.Command{
		Use:   "trace [--for TIME] [--slower TIME] [-o FILE] DIR",
		Short: "show where the time of the slowest request went, layer by layer",
		Long: "Records for a while what the daemon does and prints the slowest request of the kernel: what each layer did for it, which queue " +
			"pairs its commands took, and whether it ran or waited. With --slower the first request that takes so long ends the recording. " +
			"The daemon keeps the newest 16 MiB; recording slows it by a few percent.",
		Args: exactly("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if req.For <= 0 || req.For > maxTraceFor {
				return fmt.Errorf("--for %v: want more than 0, and %v at most", req.For, maxTraceFor)
			}
			if err := mayWrite(file, "go 1."); err != nil {
				return fmt.Errorf("--output: %w", err)
			}
			m, err := ourMount(args[0])
			if err != nil {
				return err
			}
			bar := &progressBar{out: c.ErrOrStderr(), say: func(p progress) string {
				return fmt.Sprintf("recording, %v of %v", time.Duration(p.Done).Round(traceStep), time.Duration(p.Total))
			}}
			var recorded time.Duration
			r, err := query(m, req, requestTimeout, func(p progress) {
				recorded = time.Duration(p.Done)
				bar.show(p)
			})
			bar.clear()
			if err != nil {
				return fmt.Errorf("%q: %w", args[0], err)
			}
			if file != "" {
				if err := os.WriteFile(file, r.Trace, 0o600); err != nil {
					return err
				}
			}
			return printSlowest(c.OutOrStdout(), r.Trace, req, recorded)
		},
	}
	c.Flags().DurationVar(&req.For, "for", req.For, "how long to record")
	c.Flags().DurationVar(&req.Slower, "slower", 0, "end with the first request that takes this long")
	c.Flags().StringVarP(&file, "output", "o", "", "keep the trace in a file, for go tool trace")
	return c
}

// printSlowest prints the slowest request of a trace that was recorded for a while.
func printSlowest(out io.Writer, trace []byte, req request, recorded time.Duration) error {
	f, err := slowest.Find(bytes.NewReader(trace))
	if err != nil {
		return err
	}
	s := f.Slowest
	switch {
	case s == nil && recorded < req.For:
		return fmt.Errorf("no request came in %v, until the mount ended", recorded.Round(traceStep))
	case s == nil:
		return fmt.Errorf("no request came within %v: use the mount meanwhile, or record for longer with --for", req.For)
	case req.Slower > 0 && s.Took < req.Slower:
		return fmt.Errorf("none of %d requests took %v: the slowest took %s", f.Requests, req.Slower, units.Duration(s.Took))
	}
	fmt.Fprintf(out, "the slowest of %d requests: %s, %s, at %s\n\n", f.Requests, s.Name, units.Duration(s.Took), s.Began.Format("15:04:05.000000"))
	s.Print(out)
	return nil
}
