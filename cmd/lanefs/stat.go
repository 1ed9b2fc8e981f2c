package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// report reads the counters. The stack must be open: see whileServed.
func (d *daemon) report() *report {
	s, i, facts := d.stack, d.stack.dev.Info(), d.stack.rt.Facts()
	if s.array != nil {
		i = s.array.Info()
	}
	var v ext4.Stats
	var held *ext4.Held
	readOnly, f := i.ReadOnly, d.srv.Stats()
	if s.vol != nil { // nil: it shows the device as a file
		v, held, readOnly = s.vol.Stats(), s.vol.Held(), s.vol.ReadOnly()
	}
	r := &report{
		Dir: d.cfg.Dir, PID: os.Getpid(), Version: version, Mounted: d.started.seenFrom(thisMoment()), Log: d.logPath,
		ReadOnly: readOnly, Simulated: i.Simulated, Pinned: s.dev.Pinned(), HeapLimit: debug.SetMemoryLimit(-1),
		Full:    newFullReport(s.dev.Full(), held),
		Runtime: runtimeReport{Name: s.rt.Name(), Device: facts.Name, Arch: facts.Arch, PCI: facts.PCI},
		Device: deviceReport{i.Name, i.Model, i.Serial, i.Firmware, i.NSID, int64(i.Size()), int64(i.BlockSize), int64(i.MaxTransfer),
			i.Queues, i.Depth, i.VolatileCache, s.hostBuffer(), s.mediumPath(), ""},
		Volume: volumeReport{v.DataRead, v.DataWritten, v.CopiedRead, v.CopiedWritten, v.MetadataRead, v.MetadataWritten, v.JournalWritten, v.Commits, v.Cached},
		FUSE:   fuseReport{Reads: f.Reads, ReadBytes: f.ReadBytes, Writes: f.Writes, WrittenBytes: f.WrittenBytes, Nodes: f.Nodes},
	}
	for _, rt := range s.more {
		f := rt.Facts()
		r.Runtime.More = append(r.Runtime.More, gpuReport{f.PCI, f.Name, f.Arch})
	}
	r.Share, r.Runtime.Left = d.share.report(), d.share.left()
	r.Times = slices.Concat(f.Times, v.Times, s.dev.Times())
	by, whyNot := d.srv.Transport()
	if r.FUSE.Transport = by; whyNot != nil {
		r.FUSE.WhyNot = oneLine(whyNot)
	}
	idle, whyNot := d.srv.SchedIdle()
	if r.FUSE.SchedIdle = idle; whyNot != nil {
		r.FUSE.NoSchedIdle = oneLine(whyNot)
	}
	route, why := s.eng.Doorbells()
	r.Runtime.Memory, r.Runtime.Bells, r.Runtime.Refused = s.choice.Mode, route.String(), s.choice.Refused
	if why != nil {
		r.Runtime.NoBAR = oneLine(why)
	}
	if s.eng.CPULanes() > 0 {
		n := s.eng.Chosen()
		r.Runtime.Chosen = &chosenReport{n.GPU, n.Late, n.Small, n.Host, n.Software, s.eng.Late()}
	}
	if s.copy != nil {
		n := s.copy.Counters()
		r.Runtime.Copies = &n
	}
	for k, u := range s.all() {
		for _, q := range u.eng.Stats() {
			r.Queues = append(r.Queues, queueReport(q, k))
			r.Total.add(q)
		}
		if f := u.nvme.Failover(); f != nil && r.Runtime.Failed == "" {
			r.Runtime.Failed, r.Runtime.Memory = f.Why, 0
		}
		r.Runtime.Left += u.nvme.LeftMemory()
		for _, e := range u.copyEngines() {
			r.Runtime.Left += e.Left()
		}
		if r.Device.Failed == "" {
			r.Device.Failed = u.mediumFailed()
		}
		if s.array != nil {
			m := u.disk().Info()
			r.Members = append(r.Members, memberReport{u.cfg.name(), m.Model, m.Serial, m.Firmware, m.NSID, int64(m.Size())})
		}
	}
	return r
}

// mediumFailed says why nothing is durable any more, "" as long as it is: what the software controller knows of its image, or what a
// Flush failed with.
func (c *drive) mediumFailed() string {
	err := c.nvme.NotDurable()
	if image, ok := c.ctl.(*softctl.Controller); ok && image.Failed() != nil {
		err = image.Failed()
	}
	if err == nil {
		return ""
	}
	return oneLine(err)
}

// mediumPath says how a software controller reaches its image or block device, "" of a drive.
func (c *drive) mediumPath() string {
	if image, ok := c.ctl.(*softctl.Controller); ok {
		return image.Path()
	}
	return ""
}

// statOf asks for the counters of the mount m. The daemon knows where it was mounted, and not where the mount is since mount --move or a rename above it, nor who sees
// it elsewhere: a bind mount, another mount namespace.
func statOf(m *mountinfo.Info) (*report, error) {
	r, err := query(m, request{Op: "stat"}, requestTimeout, nil)
	if err != nil {
		return nil, err
	}
	r.Stat.Dir = m.Mountpoint
	return r.Stat, nil
}

func statCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "stat [--json] DIR",
		Short: "print the live counters of a mount",
		Args:  exactly("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := ourMount(args[0])
			if err != nil {
				return err
			}
			r, err := statOf(m)
			if err != nil {
				return fmt.Errorf("%q: %w", args[0], err)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), "stat", r)
			}
			return r.print(c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (r *report) print(out io.Writer) error {
	i := &r.Device
	how := ""
	if r.Simulated {
		how = " (simulated: the controller is software)"
	}
	if r.ReadOnly {
		how += ", read-only"
	}
	fmt.Fprintf(out, "%s on %s%s\n", shown(i.Name), shown(r.Dir), how)
	if len(r.Members) == 0 {
		fmt.Fprintf(out, "controller  %s, serial %s, firmware %s, namespace %d: %s in blocks of %d\n",
			shown(i.Model), shown(i.Serial), shown(i.Firmware), i.NSID, units.Bytes(i.Size), i.BlockSize)
	} else {
		fmt.Fprintf(out, "array       %s, %s: %s in blocks of %d\n", i.Model, i.Serial, units.Bytes(i.Size), i.BlockSize)
	}
	for k, m := range r.Members {
		fmt.Fprintf(out, "member %-4d %s: %s, serial %s, firmware %s, namespace %d, %s\n", k, shown(m.Name), shown(m.Model), shown(m.Serial), shown(m.Firmware), m.NSID, units.Bytes(m.Size))
	}
	if i.Path != "" {
		fmt.Fprintf(out, "medium      %s\n", shown(i.Path))
	}
	at := ""
	if len(r.Runtime.More) > 0 {
		at = " at " + r.Runtime.PCI
	}
	fmt.Fprintf(out, "runtime     %s: %s (%s)%s\n", r.Runtime.Name, r.Runtime.Device, r.Runtime.Arch, at)
	for _, g := range r.Runtime.More {
		fmt.Fprintf(out, "and         %s: %s (%s) at %s\n", r.Runtime.Name, g.Device, g.Arch, g.PCI)
	}
	fmt.Fprintf(out, "placement   memory mode %d, doorbells by %s", r.Runtime.Memory, r.Runtime.Bells)
	if r.Runtime.NoBAR != "" {
		fmt.Fprintf(out, ": %s", r.Runtime.NoBAR)
	}
	fmt.Fprintln(out)
	if n := r.Runtime.Chosen; n != nil {
		fmt.Fprintf(out, "lanes       on the GPU for %d requests; on the CPU for %d that the GPU was late for, %d small ones beside a shared GPU, "+
			"%d to or from programs' host memory, %d short or to device memory, of a software controller\n", n.GPU, n.Late, n.Small, n.Host, n.Software)
	}
	if n := r.Runtime.Copies; n != nil {
		fmt.Fprintf(out, "copies      %d small ones by %d launches of a kernel, %d each for itself (%d while the kernel was late), %d large ones\n",
			n.Kernel.Copies, n.Launches, n.Single.Copies, n.Late, n.Large.Copies)
		if n.NoKernel != "" {
			fmt.Fprintf(out, "refused     the kernel for small copies: %s\n", n.NoKernel)
		}
	}
	for _, why := range r.Runtime.Refused {
		fmt.Fprintf(out, "refused     %s\n", why)
	}
	if r.Runtime.Failed != "" {
		fmt.Fprintf(out, "failed      the lanes run on the CPU now: %s\n", r.Runtime.Failed)
		fmt.Fprintf(out, "left        %s of memory that the GPU may use yet, until the daemon ends\n", units.Bytes(r.Runtime.Left))
	}
	if r.Device.Failed != "" {
		fmt.Fprintf(out, "failed      the medium: %s; nothing is durable from then on\n", r.Device.Failed)
	}
	if r.Full != nil {
		fmt.Fprintf(out, "full        %v\n", r.Full)
	}
	fmt.Fprintf(out, "queues      %d pairs, %d commands in flight on each, %s a command; %s pinned",
		i.Queues, i.Depth, units.Bytes(i.MaxTransfer), units.Bytes(r.Pinned))
	if r.Device.HostBuffer > 0 {
		fmt.Fprintf(out, ", and %s for the drive's own tables", units.Bytes(r.Device.HostBuffer))
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "daemon      pid %d, version %s, mounted %s ago", r.PID, r.Version, time.Since(r.Mounted).Round(time.Second))
	if r.Log != "" {
		fmt.Fprintf(out, ", log %s", shown(r.Log))
	}
	fmt.Fprintln(out)
	v, f := r.Volume, r.FUSE
	fmt.Fprintf(out, "requests    by %s", f.Transport)
	if f.WhyNot != "" {
		fmt.Fprintf(out, ", not io_uring: %s", f.WhyNot)
	}
	if s := f.SchedIdle; s != nil {
		fmt.Fprintf(out, "; %d threads with SCHED_IDLE, %d times so far, of which busy CPUs ended %d", s.Now, s.Times, s.Pauses)
		if s.Left > 0 {
			fmt.Fprintf(out, " and requests by a GPU's lanes or a block device's io_uring %d", s.Left)
		}
	}
	if f.NoSchedIdle != "" {
		fmt.Fprintf(out, "; none with SCHED_IDLE: %s", f.NoSchedIdle)
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "data        %d bytes read, %d written; %d and %d copied by the CPU\n", v.DataRead, v.DataWritten, v.CopiedRead, v.CopiedWritten)
	fmt.Fprintf(out, "metadata    %d bytes read, %d written, %d in the journal; %d commits; %s in memory\n",
		v.MetadataRead, v.MetadataWritten, v.JournalWritten, v.Commits, units.Bytes(v.Cached))
	fmt.Fprintf(out, "kernel      %d reads of %d bytes, %d writes of %d bytes; %d inodes known\n", f.Reads, f.ReadBytes, f.Writes, f.WrittenBytes, f.Nodes)
	r.Share.print(out)
	fmt.Fprintln(out)

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "queue\tcommands\tshortcuts\tbytes read\tbytes written\tSQ doorbells\tCQ doorbells\terrors\ttimeouts\t")
	row := func(name string, q queueCounters) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, q.Commands, q.Shortcuts, q.BytesRead, q.BytesWritten, q.SQDoorbells, q.CQDoorbells, q.Errors, q.Timeouts)
	}
	for _, q := range r.Queues {
		name := fmt.Sprint(q.QID)
		if len(r.Members) > 0 {
			name = fmt.Sprintf("%d of %d", q.QID, q.Member)
		}
		if q.CPU {
			name += " cpu"
		}
		if q.GPU != "" {
			name += " " + q.GPU
		}
		row(name, q.queueCounters)
	}
	row("all", r.Total)
	if err := w.Flush(); err != nil || len(r.Times) == 0 {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "layer\tkind\tcount\tmean\tp50\tp99\tlongest\t")
	for _, s := range r.Times {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t\n", s.Layer, s.Kind, s.Count,
			units.Duration(s.Mean()), units.Duration(s.P50), units.Duration(s.P99), units.Duration(s.Max))
	}
	return w.Flush()
}
