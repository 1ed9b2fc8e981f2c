package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// proveOptions is what the flags of `lanefs prove` say.
type proveOptions struct {
	flags   []string // that mirror mount options
	scratch string
	destroy bool
	serial  bool
	json    bool
	report  string
	time    time.Duration
}

func proveCommand() *cobra.Command {
	var o proveOptions
	c := &cobra.Command{
		Use:   "prove [flags] DEVICE",
		Short: "test all that LaneFS needs of DEVICE, step by step, and write a report",
		Long: `Tests on DEVICE, step by step, everything that a mount could use. For each step (a rung) it prints whether it held, failed and why, or is impossible
here. The rungs are, first, what lanefs doctor examines, the function's driver and IOMMU group, its BAR, the admin queue, Identify. Then lanes on the
CPU with queues in host memory, both ways to ring the doorbell, an invalid LBA that the controller must refuse, work without interrupts, a reset. Then the
GPU: its runtime, a kernel that rings the admin doorbell, each doorbell route, each memory mode with data compared on both sides, kernels that must see what
the drive writes over data that they have cached, a second of reads. At the end, the move to the CPU when a GPU fails. The command goes on after a rung
that fails.

By default it only reads. --scratch FIRST-LAST allows it to write these logical blocks, whose contents it restores; --destroy allows it to write all of
DEVICE. DEVICE must not be in use: lanefs bind takes a drive from the kernel. An image file or a block device has a software controller, and the report
says so: this tests the machine, not a drive.

The report, NAME.txt and NAME.json, can be attached to an issue: it has versions, PCI topology, drivers, every rung. Serial numbers and other identifiers of the drive are
left out unless --serial is given.

The exit status is 0 if every rung that is possible here was tried, and held.`,
		Args: exactly("DEVICE"),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	f := c.Flags()
	mountopt.AddFlags(f, &o.flags, "gpu", "vram", "lba", "lane")
	f.StringVar(&o.scratch, "scratch", "", "logical blocks, `FIRST-LAST`, that may be written; their contents are restored")
	f.BoolVar(&o.destroy, "destroy", false, "allow writes anywhere: what is on DEVICE is lost")
	f.BoolVar(&o.serial, "serial", false, "include serial numbers and identifiers")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.report, "report", "", "`NAME` of the report's files, without .txt and .json; the default has the time in it; none writes no files")
	f.DurationVar(&o.time, "time", time.Second, "`TIME` of each measurement of the throughput")
	for _, name := range []string{"gpu", "lane"} {
		_ = c.RegisterFlagCompletionFunc(name, completeValues(name))
	}
	return c
}

// prover is one `lanefs prove` under way.
type prover struct {
	o    *proveOptions
	out  io.Writer // what is told as it goes; discarded with --json
	stop <-chan struct{}
	log  *slog.Logger
	dev  benchDevice
	gpu  string // name of the GPU's runtime; empty: none
	r    *proofReport
	area string
	hide []string // not to be told

	first, blocks uint64                         // LBAs that may be written; no blocks: none
	lost          bool                           // what was in them could not be put back
	refusal       error                          // why DEVICE cannot be opened
	route         engine.DoorbellRoute           // the best that held
	modes         map[controller.MemoryMode]bool // that held
}

func (o *proveOptions) run(c *cobra.Command, device string) error {
	p := &prover{o: o, out: c.OutOrStdout(), log: slog.New(slog.DiscardHandler), dev: benchDevice{arg: device, out: io.Discard}, modes: map[controller.MemoryMode]bool{},
		r: &proofReport{Version: version, When: time.Now(), Device: device, Writes: "none"}}
	if o.json {
		p.out = io.Discard
	}
	if o.destroy && o.scratch != "" {
		return usage(errors.New("--destroy allows what --scratch does: give one of them"))
	}
	if o.time <= 0 {
		return usage(fmt.Errorf("--time %v: want more than 0", o.time))
	}
	if o.scratch != "" {
		if err := p.parseScratch(o.scratch); err != nil {
			return usage(err)
		}
	}
	if err := p.dev.parse(o.flags, !o.destroy && o.scratch == ""); err != nil {
		var wrong *exitError
		if errors.As(err, &wrong) || !isFunctionName(device) {
			return err // there is nothing to prove
		}
		p.refusal = err
	}
	if o.report != "none" && o.report != "" { // the name by default has the time in it
		for _, f := range p.files() {
			if err := mayWrite(o.report+f.end, f.begins); err != nil {
				return fmt.Errorf("the report: %w", err)
			}
		}
	}
	stop, end := stopped()
	defer end()
	p.stop, p.dev.cfg.stop = stop, stop
	err := p.climb()
	end() // what is written from here on may wait for its reader: a signal ends that
	p.finish()
	if o.json {
		err = errors.Join(err, printJSON(c.OutOrStdout(), "prove", p.r))
	} else {
		fmt.Fprintf(p.out, "\n%s\n", p.r.summary())
	}
	if err := errors.Join(err, p.write(c.ErrOrStderr())); err != nil {
		return err
	}
	if p.r.Failed > 0 {
		return fmt.Errorf("%d rungs failed; see above", p.r.Failed)
	}
	if p.r.Interrupted {
		return errors.New("interrupted before the last rung: run it again for the whole proof")
	}
	return nil
}

// isFunctionName says whether an argument is a PCI address, of a namespace or a partition of it perhaps.
func isFunctionName(arg string) bool {
	w, err := splitDevice(arg)
	return err == nil && pciAddress.MatchString(w.Device)
}

// parseScratch reads FIRST-LAST.
func (p *prover) parseScratch(text string) error {
	from, to, ok := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 64)
	last, err2 := strconv.ParseUint(to, 10, 64)
	if !ok || err != nil || err2 != nil || last < first || last-first == math.MaxUint64 {
		return fmt.Errorf("--scratch %s: want two logical blocks, FIRST-LAST", text)
	}
	p.first, p.blocks = first, last-first+1
	return nil
}

// finish counts, and takes out what is not to be told.
func (p *prover) finish() {
	r := p.r
	for _, g := range r.Rungs {
		switch g.Outcome {
		case rungHeld:
			r.Held++
		case rungFailed:
			r.Failed++
		case rungImpossible:
			r.Impossible++
		}
		g.Said = p.quiet(g.Said)
	}
	for i := range r.Findings {
		r.Findings[i].Found, r.Findings[i].Remedy = p.quiet(r.Findings[i].Found), p.quiet(r.Findings[i].Remedy)
	}
}

// quiet is a text without the drive's identifiers.
func (p *prover) quiet(s string) string {
	if p.o.serial {
		return s
	}
	return withoutSecrets(s, p.hide)
}

// reportFile is a form of the report.
type reportFile struct {
	end, begins string // of its name; of what is in it
	write       func(io.Writer) error
}

func (p *prover) files() []reportFile {
	return []reportFile{{".txt", "lanefs prove ", p.r.print}, {".json", "{", func(w io.Writer) error { return printJSON(w, "prove", p.r) }}}
}

// write writes the report, and says where.
func (p *prover) write(out io.Writer) error {
	name := p.o.report
	switch name {
	case "none":
		return nil
	case "":
		name = "lanefs-prove-" + p.r.When.Format("20060102-150405")
	}
	for _, f := range p.files() {
		file, err := os.Create(name + f.end)
		if err != nil {
			return fmt.Errorf("the report: %w", err)
		}
		if err := errors.Join(f.write(file), file.Close()); err != nil {
			return fmt.Errorf("the report: %w", err)
		}
	}
	if !p.o.json {
		fmt.Fprintf(p.out, "the report: %s.txt and %s.json\n", name, name)
	}
	return nil
}

// cannot is the error of a rung for which something is missing.
type cannot struct{ why string }

func (c cannot) Error() string { return c.why }

// rung tries one rung. It says whether that held.
func (p *prover) rung(name string, try func() (said string, err error)) bool {
	return p.owed(name, func() (string, error) {
		if isClosed(p.stop) {
			p.r.Interrupted = true
			return "", cannot{"interrupted before it was tried"}
		}
		return try()
	})
}

// owed is rung for what is done after an interruption, too.
func (p *prover) owed(name string, try func() (said string, err error)) bool {
	g := &proofRung{Area: p.area, Name: name}
	began := time.Now()
	var err error
	g.Said, err = try()
	g.Took, g.Outcome = time.Since(began), rungHeld
	if err != nil {
		g.Said, g.Outcome = oneLine(err), rungFailed
		var refused *engine.Refused
		var missing cannot
		if (errors.As(err, &refused) || errors.As(err, &missing)) && !errors.Is(err, calls.ErrHangs) {
			g.Outcome = rungImpossible
		}
	}
	p.r.Rungs = append(p.r.Rungs, g)
	fmt.Fprintln(p.out, &proofRung{Name: name, Outcome: g.Outcome, Said: p.quiet(g.Said)})
	return g.Outcome == rungHeld
}

// begin begins an area.
func (p *prover) begin(area string) {
	if p.area != "" {
		fmt.Fprintln(p.out)
	}
	p.area = area
	fmt.Fprintln(p.out, area)
}
