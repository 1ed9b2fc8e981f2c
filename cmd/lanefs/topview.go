package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs/share"
)

// layers are in the order of the data path.
var layers = []string{"fuse", "ext4", "device", "lanes", "controller"}

// span is what happened between two readings.
type span struct {
	seconds float64
	times   []latency.Summary // of each layer and kind that was met
	was, is *report
}

// span is what happened since the reading before; since the mount, if there is none.
func (t *top) span() span {
	s := span{is: t.now.stat, was: &report{}, seconds: t.now.at.Sub(t.now.stat.Mounted).Seconds()}
	if t.before.stat != nil && t.before.stat.Mounted.Equal(t.now.stat.Mounted) {
		s.was, s.seconds = t.before.stat, t.now.at.Sub(t.before.at).Seconds()
	}
	s.seconds = max(s.seconds, 1e-3)
	for _, now := range s.is.Times {
		i := slices.IndexFunc(s.was.Times, func(b latency.Summary) bool { return b.Layer == now.Layer && b.Kind == now.Kind })
		if i >= 0 {
			now = now.Since(s.was.Times[i])
		}
		if now.Count > 0 {
			s.times = append(s.times, now)
		}
	}
	return s
}

// layer is all kinds of one layer together.
func (s *span) layer(name string) latency.Summary {
	var of []latency.Summary
	for _, t := range s.times {
		if t.Layer == name {
			of = append(of, t)
		}
	}
	return latency.Merge(of...)
}

func (s *span) rate(n int64) string { return units.Bytes(int64(float64(n)/s.seconds)) + "/s" }

func (s *span) each(n uint64) string {
	r := float64(n) / s.seconds
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return fmt.Sprintf("%.1f", r)
	case r >= 1e6:
		return fmt.Sprintf("%.2fM", r/1e6)
	}
	return fmt.Sprintf("%.0f", r)
}

func took(s latency.Summary) (mean, p50, p99 string) {
	if s.Count == 0 {
		return "-", "-", "-"
	}
	return units.Duration(s.Mean()), units.Duration(s.P50), units.Duration(s.P99)
}

// bytes are what each layer moved since the reading before: read, written.
func (s *span) bytes(layer string) (read, written string) {
	a, b := s.was, s.is
	switch layer {
	case "fuse":
		return s.rate(b.FUSE.ReadBytes - a.FUSE.ReadBytes), s.rate(b.FUSE.WrittenBytes - a.FUSE.WrittenBytes)
	case "ext4":
		return s.rate(b.Volume.DataRead - a.Volume.DataRead + b.Volume.MetadataRead - a.Volume.MetadataRead),
			s.rate(b.Volume.DataWritten - a.Volume.DataWritten + b.Volume.MetadataWritten - a.Volume.MetadataWritten + b.Volume.JournalWritten - a.Volume.JournalWritten)
	case "controller":
		return s.rate(int64(b.Total.BytesRead - a.Total.BytesRead)), s.rate(int64(b.Total.BytesWritten - a.Total.BytesWritten))
	}
	return "", ""
}

// view is the screen, of so many columns and lines at most.
func (t *top) view(width, height int) []string {
	s, r := t.span(), t.now.stat
	var out []string
	add := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	add("lanefs top  %s on %s", shown(r.Device.Name), shown(r.Dir))
	add(" %s", strings.Join(facts(r, t.now.at), ", "))
	for _, why := range []string{r.Runtime.Failed, r.Device.Failed} {
		if why != "" {
			add(" failed: %s", why)
		}
	}
	add("")
	add("%-11s%9s%15s%15s%10s%10s%10s", "layer", "ops/s", "read", "written", "mean", "p50", "p99")
	for _, name := range layers {
		l := s.layer(name)
		read, written := s.bytes(name)
		mean, p50, p99 := took(l)
		add(" %-10s%9s%15s%15s%10s%10s%10s", name, s.each(l.Count), read, written, mean, p50, p99)
	}
	rows := max(2, (height-len(out)-10)/2)
	add("")
	add("%-11s%9s%30s%10s%10s%10s", "requests", "ops/s", "", "mean", "p50", "p99")
	for _, q := range s.busiest("fuse", rows) {
		mean, p50, p99 := took(q)
		add(" %-10s%9s%30s%10s%10s%10s", q.Kind, s.each(q.Count), "", mean, p50, p99)
	}
	add("")
	add("%-11s%9s%15s%15s%10s%10s", "queue pairs", "ops/s", "read", "written", "errors", "timeouts")
	for _, q := range s.queues(rows) {
		add(" %-10s%9s%15s%15s%10d%10d", q.name, s.each(q.Commands), s.rate(int64(q.BytesRead)), s.rate(int64(q.BytesWritten)), q.Errors, q.Timeouts)
	}
	add("")
	v, w := r.Volume, s.was.Volume
	add("journal     %s commits/s, %s; %s of metadata, %d inodes in memory", s.each(uint64(v.Commits-w.Commits)), s.rate(v.JournalWritten-w.JournalWritten),
		units.Bytes(v.Cached), r.FUSE.Nodes)
	if m := t.now.vram; m != nil {
		add("VRAM        %s of %s in use, %d evicted%s", units.Bytes(m.Used), units.Bytes(m.Size), m.Evicted, holders(m))
	}
	return fit(out, width, height)
}

// facts are those of the second line.
func facts(r *report, at time.Time) []string {
	out := []string{"up " + at.Sub(r.Mounted).Round(time.Second).String(), r.Runtime.Name}
	if r.Simulated { // what matters most first: a narrow screen cuts the end off
		out = append(out, "simulated")
	}
	if r.ReadOnly {
		out = append(out, "READ-ONLY")
	}
	return append(out, fmt.Sprintf("%d × %d commands", r.Device.Queues, r.Device.Depth), units.Bytes(r.Pinned)+" pinned", r.FUSE.Transport)
}

// busiest are the kinds of a layer with the most operations.
func (s *span) busiest(layer string, n int) []latency.Summary {
	var of []latency.Summary
	for _, t := range s.times {
		if t.Layer == layer {
			of = append(of, t)
		}
	}
	slices.SortStableFunc(of, func(a, b latency.Summary) int { return cmp.Compare(b.Count, a.Count) })
	return of[:min(n, len(of))]
}

type topQueue struct {
	name string
	queueCounters
}

// queues are the queue pairs with the most commands, at most n; the rest are added up.
func (s *span) queues(n int) []topQueue {
	var out []topQueue
	for i, q := range s.is.Queues {
		t := topQueue{fmt.Sprint(q.QID), q.queueCounters}
		if q.CPU {
			t.name += " cpu"
		}
		if i < len(s.was.Queues) {
			t.less(s.was.Queues[i].queueCounters)
		}
		out = append(out, t)
	}
	slices.SortStableFunc(out, func(a, b topQueue) int { return cmp.Compare(b.Commands, a.Commands) })
	if len(out) > n {
		rest := topQueue{name: fmt.Sprintf("%d others", len(out)-n+1)}
		for _, q := range out[n-1:] {
			rest.Commands, rest.BytesRead, rest.BytesWritten = rest.Commands+q.Commands, rest.BytesRead+q.BytesRead, rest.BytesWritten+q.BytesWritten
			rest.Errors, rest.Timeouts = rest.Errors+q.Errors, rest.Timeouts+q.Timeouts
		}
		out = append(out[:n-1], rest)
	}
	return out
}

// less subtracts what top shows; errors and timeouts stay those since the mount.
func (c *queueCounters) less(o queueCounters) {
	c.Commands, c.BytesRead, c.BytesWritten = c.Commands-o.Commands, c.BytesRead-o.BytesRead, c.BytesWritten-o.BytesWritten
}

// holders names the users with the most device memory.
func holders(m *vramReport) string {
	users := slices.Clone(m.Users)
	slices.SortStableFunc(users, func(a, b share.Usage) int { return cmp.Compare(b.Held, a.Held) })
	text := ""
	for _, u := range users[:min(3, len(users))] {
		if u.Held > 0 {
			text += fmt.Sprintf("; uid %d holds %s", u.UID, units.Bytes(u.Held))
		}
	}
	return text
}

// fit cuts what is too long for the screen.
func fit(lines []string, width, height int) []string {
	lines = lines[:min(len(lines), max(height, 1))]
	for i, l := range lines {
		if r := []rune(l); len(r) > width {
			lines[i] = string(r[:max(width, 0)])
		}
	}
	return lines
}

const plainHeading = "time         fuse/s      read/s   written/s       p50       p99  device/s  ctrl p50  ctrl p99 commits/s"

// line is the plain form of what happened since the reading before.
func (t *top) line() string {
	s := t.span()
	fuse, device, ctrl := s.layer("fuse"), s.layer("device"), s.layer("controller")
	_, p50, p99 := took(fuse)
	_, c50, c99 := took(ctrl)
	f, g := s.is.FUSE, s.was.FUSE
	short := func(n int64) string {
		return strings.ReplaceAll(units.Bytes(int64(float64(n)/s.seconds)), " bytes", " B")
	}
	return fmt.Sprintf("%s %10s %11s %11s %9s %9s %9s %9s %9s %9s", t.now.at.Format(time.TimeOnly), s.each(fuse.Count), short(f.ReadBytes-g.ReadBytes),
		short(f.WrittenBytes-g.WrittenBytes), p50, p99, s.each(device.Count), c50, c99, s.each(uint64(s.is.Volume.Commits-s.was.Volume.Commits)))
}
