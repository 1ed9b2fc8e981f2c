package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/bench"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// benchDevice is a DEVICE that a command drives without a mount, alone: what is meant of it, and how it is opened.
type benchDevice struct {
	cfg      mountConfig
	arg      string
	asked    string    // what --gpu says
	out      io.Writer // of warnings
	first    uint64    // LBA of the region
	blocks   uint64    // LBAs
	drive    drive
	identity bench.Report // what is known of the device
}

// benchOptions is what the flags of `lanefs bench` say.
type benchOptions struct {
	flags                []string // that mirror mount options
	blocks, lanes, depth []string
	queue, batch, reads  int
	sequential           bool
	time                 time.Duration
	count                uint64
	offset, size         string
	seed                 uint64
	verify               bool
	destroy              bool
	steps, allModes, fio bool
	json                 bool
	svg                  string
}

func benchCommand() *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench [flags] DEVICE",
		Short: "measure DEVICE through lanes: commands a second, latencies, and the steps of a command",
		Long: `Sends commands to DEVICE, a bound NVMe function (ADDR, ADDR/NSID), an image file, a block device or a partition of one, through lanes, as a
mount would, but without a mount. The default is random reads for 5 s. --block, --lanes and --depth take lists; every combination is measured.
Ctrl-C ends the command, which then prints what it has measured so far.

Without --destroy DEVICE is opened for reading, and nothing is written. With --destroy everything in the region may be overwritten. A DEVICE that is in
use is refused: mounted, swap, a member of an array, or open exclusively.

With --destroy data is verified: kernels on the device that runs the lanes write a pattern for each block, which depends on its address and
on --seed, and check the data that is read. What was written is read again at the end. If reads are measured, the region is written first. The checks
run between the commands: latencies do not include them, commands a second do. --verify=false leaves the checks out. Without --destroy, --verify --seed N
checks what an earlier run with that seed wrote; a block without a word of its pattern is counted apart, since nobody knows where that run wrote. The
status is 1 then only if all are so.

--steps measures the steps of each command separately, by the lane's own timestamps: build (SQE and PRP list), post (the release that makes them
visible), ring (the doorbell), wait (until a poll finds the completion), reap. The lanes then run special kernels, which are a little slower.

--all-modes measures every memory mode with every doorbell route that goes with it. Modes that are impossible here, or that move wrong bytes, are
reported and left out. --fio measures the same with fio through the kernel's driver at the end, if the kernel has DEVICE. The software controller
(images and block devices) is marked as simulated.

The status is 1 when a block was wrong or a command failed.`,
		Args: exactly("DEVICE"),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	f := c.Flags()
	mountopt.AddFlags(f, &o.flags, "gpu", "vram", "lba", "lane", "memory-mode", "doorbell")
	f.StringSliceVar(&o.blocks, "block", []string{"4k"}, "bytes of a command: `SIZES`, separated by commas")
	f.StringSliceVar(&o.lanes, "lanes", []string{"4"}, "queue pairs: `NUMBERS`")
	f.StringSliceVar(&o.depth, "depth", []string{"32"}, "commands in flight on each: `NUMBERS`")
	f.IntVar(&o.queue, "queue", 0, "`ENTRIES` of a queue; 0 is one more than the depth")
	f.IntVar(&o.batch, "batch", 0, "`COMMANDS` that are sent together; 1 sends each when one before it ends; 0, or more than the depth, is the depth")
	f.IntVar(&o.reads, "reads", 100, "`PERCENT` of the commands that read; the others write")
	f.BoolVar(&o.sequential, "sequential", false, "sequential instead of random blocks")
	f.DurationVar(&o.time, "time", 5*time.Second, "`TIME` of each measurement; 0 is until Ctrl-C, or --count")
	f.Uint64Var(&o.count, "count", 0, "`COMMANDS` of each measurement at most; without --time there is no limit of time then")
	f.StringVar(&o.offset, "offset", "0", "`BYTES` into DEVICE at which the region begins")
	f.StringVar(&o.size, "size", "0", "`BYTES` of the region; 0 is to the end")
	f.Uint64Var(&o.seed, "seed", 0, "of patterns and random blocks; 0 is a new one")
	f.BoolVar(&o.verify, "verify", false, "have kernels write and check patterns; on with --destroy")
	f.BoolVar(&o.destroy, "destroy", false, "allow writes: what is on DEVICE is lost")
	f.BoolVar(&o.steps, "steps", false, "measure the steps of a command separately")
	f.BoolVar(&o.allModes, "all-modes", false, "every memory mode and doorbell route")
	f.BoolVar(&o.fio, "fio", false, "also measure fio on the kernel's driver")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.svg, "svg", "", "draw the results into `FILE`")
	_ = c.MarkFlagFilename("svg", "svg")
	for _, name := range []string{"gpu", "lane", "memory-mode", "doorbell"} {
		_ = c.RegisterFlagCompletionFunc(name, completeValues(name))
	}
	return c
}

// run measures, and prints.
func (o *benchOptions) run(c *cobra.Command, device string) error {
	jobs, err := o.jobs(c)
	if err != nil {
		return usage(err)
	}
	if err := mayWrite(o.svg, "<svg "); err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	d := benchDevice{arg: device, out: c.ErrOrStderr()}
	if err := d.parse(o.flags, !o.destroy); err != nil {
		return err
	}
	for _, j := range jobs {
		d.cfg.Lanes = max(d.cfg.Lanes, j.Lanes)
	}
	stop, end := stopped()
	defer end()
	d.cfg.stop = stop
	r, failed := o.measure(stop, &d, jobs)
	end() // what is written from here on may wait for its reader: a signal ends that
	if r == nil || failed != nil && len(r.Runs) == 0 {
		return failed
	}
	var undrawn error // what was measured is printed all the same
	if o.svg != "" {
		if err := os.WriteFile(o.svg, []byte(r.SVG()), 0o644); err != nil {
			undrawn = fmt.Errorf("--svg: %w", err)
		}
	}
	if o.json {
		err = printJSON(c.OutOrStdout(), "bench", r)
	} else {
		err = r.Print(c.OutOrStdout())
	}
	if wrong, failed := r.Bad(); err == nil && wrong+failed > 0 {
		err = fmt.Errorf("%d blocks were wrong and %d commands failed; see above", wrong, failed)
	}
	if err == nil && r.Nothing() {
		err = fmt.Errorf("no block has a word of what --seed %d writes", r.Seed)
	}
	return errors.Join(failed, err, undrawn)
}

// jobs are what the flags ask for, each block size with each number of lanes and each depth.
func (o *benchOptions) jobs(c *cobra.Command) (jobs []bench.Job, err error) {
	f := c.Flags()
	switch {
	case o.reads < 0 || o.reads > 100:
		return nil, fmt.Errorf("--reads %d: want a percentage", o.reads)
	case o.reads < 100 && !o.destroy:
		return nil, fmt.Errorf("--reads %d writes, and nothing is written without --destroy, which says that what is on DEVICE may be lost", o.reads)
	case o.time < 0:
		return nil, fmt.Errorf("--time %v: want 0 or more", o.time)
	case o.batch < 0 || o.queue < 0 || o.queue == 1:
		return nil, fmt.Errorf("--batch %d, --queue %d: want 0, or more than that; a queue has two entries at least", o.batch, o.queue)
	case o.verify && !o.destroy && o.seed == 0:
		return nil, errors.New("--verify without --destroy checks what an earlier run wrote: say by which --seed")
	case o.allModes && (f.Changed("memory-mode") || f.Changed("doorbell")):
		return nil, errors.New("--all-modes takes every memory mode and doorbell route: leave --memory-mode and --doorbell out")
	}
	if o.count > 0 && !f.Changed("time") {
		o.time = 0
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if !f.Changed("verify") {
		o.verify = o.destroy
	}
	blocks, err := each("--block", o.blocks, mountopt.ParseSize)
	if err != nil {
		return nil, err
	}
	lanes, err := each("--lanes", o.lanes, within(1, mountopt.MaxLanes))
	if err != nil {
		return nil, err
	}
	depths, err := each("--depth", o.depth, within(1, 16383))
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		for _, n := range lanes {
			for _, depth := range depths {
				jobs = append(jobs, bench.Job{Block: b, Lanes: int(n), Depth: int(depth), Queue: o.queue, Batch: o.batch, Reads: o.reads,
					Sequential: o.sequential, Time: o.time, Count: o.count, Verify: o.verify, Prefill: o.destroy && o.verify && o.reads > 0,
					Seed: o.seed, Steps: o.steps})
			}
		}
	}
	return jobs, nil
}

// each reads the values of a list.
func each(flag string, list []string, parse func(string) (int64, error)) (all []int64, err error) {
	for _, text := range list {
		n, err := parse(strings.TrimSpace(text))
		if err == nil && n == 0 {
			err = errors.New("want more than 0")
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, strings.Join(list, ","), err)
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: want a value", flag)
	}
	return all, nil
}

func within(low, high int64) func(string) (int64, error) {
	return func(text string) (int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("%q: want numbers from %d to %d", text, low, high)
		}
		return n, nil
	}
}

// stopped gives a channel that is closed by the first signal that asks for an end. The second has its usual effect.
func stopped() (stop <-chan struct{}, end func()) {
	signals, over, gone := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	go func() {
		select {
		case <-signals:
			signal.Stop(signals)
			close(over)
		case <-gone:
		}
	}()
	return over, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(gone)
	})
}

// parse takes the DEVICE argument and the flags that mirror mount options.
func (d *benchDevice) parse(flags []string, readOnly bool) error {
	cfg := &d.cfg
	cfg.Config = mountopt.Default()
	if err := mountopt.Parse(&cfg.Config, flags...); err != nil {
		return usage(err)
	}
	if err := cfg.take(d.arg); err != nil {
		return err
	}
	if cfg.Array || len(cfg.Members) > 0 {
		return usage(fmt.Errorf("device %q is an array: name one of its members", d.arg))
	}
	cfg.ReadOnly, d.asked = readOnly, cfg.GPU
	return nil
}

// open opens the controller. A memory mode and a route for doorbells are chosen as a mount would, unless they are named.
func (d *benchDevice) open() error {
	if d.drive.nvme != nil {
		return nil
	}
	var err error
	if d.drive, err = openController(&d.cfg, nil, warnings(d.out)); err != nil {
		return err
	}
	if err := d.drive.claimNamespace(d.cfg.namespace()); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *benchDevice) close() error { return d.drive.Close() }

// find says what the region is, in LBAs: offset and size are bytes within the partition, or the device.
func (d *benchDevice) find(offset, size int64) error {
	first, blocks, err := d.part()
	if err != nil {
		return err
	}
	if err := d.open(); err != nil {
		return err
	}
	n := d.drive.nvme
	ns, err := n.Namespace(d.cfg.namespace())
	if err != nil {
		return err
	}
	if d.cfg.Part == 0 {
		blocks = ns.Blocks
	}
	if offset%ns.BlockSize != 0 || size%ns.BlockSize != 0 {
		return fmt.Errorf("--offset %d, --size %d: want multiples of the namespace's blocks of %d bytes", offset, size, ns.BlockSize)
	}
	skip, want := uint64(offset/ns.BlockSize), uint64(size/ns.BlockSize)
	if skip >= blocks || want > blocks-skip {
		return fmt.Errorf("--offset %d, --size %d: %s has %d bytes", offset, size, d.arg, int64(blocks)*ns.BlockSize)
	}
	if want == 0 {
		want = blocks - skip
	}
	d.first, d.blocks = first+skip, want
	id, facts := n.Identify(), d.drive.rt.Facts()
	d.identity = bench.Report{Version: version, When: time.Now(), Device: d.arg, Model: id.MN, Firmware: id.FR, Simulated: n.Simulated(),
		NSID: ns.ID, BlockSize: ns.BlockSize, Offset: int64(d.first) * ns.BlockSize, Size: int64(want) * ns.BlockSize,
		Runtime: d.drive.rt.Name(), Lanes: facts.Name}
	return nil
}

// part finds the partition that is meant, by a device of its own, which is closed again.
func (d *benchDevice) part() (first, blocks uint64, err error) {
	if d.cfg.Part == 0 {
		return 0, 0, nil
	}
	cfg := d.cfg
	cfg.Part, cfg.ReadOnly = 0, true
	s, err := openDevice(&cfg, warnings(d.out))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	t, err := partition.Read(s.dev)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", d.arg, err)
	}
	p, err := t.Find(d.cfg.Part)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", d.cfg.Device, err)
	}
	return uint64(p.First), uint64(p.Blocks), nil
}

// way is a memory mode with a route for doorbells.
type way struct {
	mode  controller.MemoryMode
	route engine.DoorbellRoute
}

// ways are all, the host's memory first. Doorbells in device memory take the bridge.
func ways() (all []way) {
	for m := controller.MemoryMode(0); m < 16; m++ {
		if m&controller.ModeDoorbell != 0 {
			all = append(all, way{m, engine.DoorbellBridge})
			continue
		}
		for _, r := range []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect, engine.DoorbellBridge} {
			all = append(all, way{m, r})
		}
	}
	return all
}

// measure carries out all jobs. Beside an error there may be a report of what was measured before it.
func (o *benchOptions) measure(stop <-chan struct{}, d *benchDevice, jobs []bench.Job) (r *bench.Report, err error) {
	offset, err := mountopt.ParseSize(o.offset)
	if err != nil {
		return nil, usage(fmt.Errorf("--offset %w", err))
	}
	size, err := mountopt.ParseSize(o.size)
	if err != nil {
		return nil, usage(fmt.Errorf("--size %w", err))
	}
	if o.allModes {
		d.cfg.MemoryMode, d.cfg.Doorbell = new(controller.MemoryMode), engine.DoorbellBridge // what works wherever anything does
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.find(offset, size); err != nil {
		return nil, err
	}
	report := d.identity
	r = &report
	r.Seed = o.seed
	all := ways()
	if !o.allModes {
		all = []way{{d.drive.choice.Mode, d.drive.choice.Doorbell}}
	}
	for i, j := range jobs {
		j.NSID, j.First, j.Blocks = r.NSID, d.first, d.blocks
		for k, w := range all {
			if isClosed(stop) {
				break
			}
			line, err := d.one(stop, j, w, o.allModes, fmt.Sprintf("%d of %d", i*len(all)+k+1, len(jobs)*len(all)))
			if line != nil {
				r.Runs = append(r.Runs, line)
			}
			if err != nil {
				r.Interrupted = true
				return r, err
			}
		}
	}
	if o.fio {
		if err := d.close(); err != nil {
			r.Interrupted = true
			return r, err
		}
		for _, j := range jobs {
			if !isClosed(stop) {
				r.Runs = append(r.Runs, d.beside(stop, j, r))
			}
		}
	}
	r.Interrupted = isClosed(stop)
	return r, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// one measures a job in one way. With prove that way is first shown to move the right bytes, and what does not work is a line of the report.
func (d *benchDevice) one(stop <-chan struct{}, j bench.Job, w way, prove bool, number string) (*bench.Line, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	j.Mode, j.Engine = w.mode, d.cfg.engine()
	j.Engine.Doorbell, j.Engine.CPULanes = w.route, 0
	line := bench.NewLine(j)
	if !w.mode.Ordered() && isFunction(d.cfg.Device) {
		line.Note = "completions and data are in different memories: a register is read after each batch, so that its data is there"
	}
	if prove {
		if err := d.prove(w, j.NSID); err != nil {
			line.Refused = oneLine(err)
			return line, d.close() // it may have left something behind
		}
	}
	bar := progressBar{out: d.out}
	defer bar.clear()
	res, err := bench.Run(stop, d.drive.nvme, j, func(p bench.Progress) {
		bar.say = func(progress) string {
			return fmt.Sprintf("%s %s: %d commands", number, p.Stage, p.Commands)
		}
		bar.show(progress{Done: p.Done, Total: max(p.Total, 1)})
	})
	if err != nil {
		switch {
		case prove:
		case res == nil:
			return nil, err
		default:
			line.Set(res)
			return line, err
		}
		line.Refused = oneLine(err)
		return line, d.close()
	}
	if res.Lanes < j.Lanes || res.Depth < j.Depth {
		line.Note = strings.TrimPrefix(line.Note+fmt.Sprintf("; asked for were %d lanes of depth %d: the controller has no more queue pairs or shorter queues, or the GPU keeps no more kernels",
			j.Lanes, j.Depth), "; ")
	}
	line.Set(res)
	return line, nil
}

// prove is engine.Prove in one way.
func (d *benchDevice) prove(w way, nsid uint32) error {
	place, err := w.mode.Placement()
	if err != nil {
		return err
	}
	if err := d.drive.nvme.Place(place); err != nil {
		return err
	}
	ec := d.cfg.engine()
	ec.Doorbell = w.route
	return engine.Prove(d.drive.nvme, ec, nsid)
}

// beside measures a job with fio.
func (d *benchDevice) beside(stop <-chan struct{}, j bench.Job, r *bench.Report) *bench.Line {
	if isFunction(d.cfg.Device) {
		line := bench.NewLine(j)
		line.By, line.Doorbell = "fio", ""
		line.Refused = fmt.Sprintf("the kernel does not have %s, which is bound to user space: lanefs unbind %s gives it back, and lanefs bench --fio of its /dev/nvme… measures it there", d.cfg.Device, d.cfg.Device)
		return line
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	bar := progressBar{out: d.out, say: func(progress) string { return "fio, for " + units.Duration(j.Time) }}
	bar.show(progress{Total: 1})
	defer bar.clear()
	return bench.Fio(ctx, d.cfg.Device, r.Offset, r.Size, j)
}
