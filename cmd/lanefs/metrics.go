package main

import (
	"cmp"
	"fmt"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/metrics"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// serveMetrics begins to answer Prometheus, if the mount is asked to. closeStack ends that.
func (d *daemon) serveMetrics() (err error) {
	if d.cfg.Metrics == "" {
		return nil
	}
	if d.metrics, err = metrics.Serve(d.cfg.Metrics, map[string]string{"mountpoint": d.cfg.Dir}, d.page, d.log); err == nil {
		d.log.Info("metrics are served", "at", d.metrics.Addr())
	}
	return err
}

// page reads the counters for Prometheus: the same as `lanefs stat` prints.
func (d *daemon) page() (*metrics.Page, error) {
	out, err := operations["stat"](d, request{}, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.cfg.Dir, err)
	}
	r, p := out.Stat, &metrics.Page{}
	p.Gauge("mount_info", "The mount; its value is always 1.", 1, "device", r.Device.Name, "runtime", r.Runtime.Name, "accelerator", r.Runtime.Device,
		"transport", r.FUSE.Transport, "version", r.Version, "simulated", fmt.Sprint(r.Simulated))
	p.Gauge("mount_start_time_seconds", "When it was mounted, in seconds since 1970.", float64(r.Mounted.UnixNano())/1e9)
	p.Gauge("read_only", "Whether the mount is read-only: 1 or 0.", one(r.ReadOnly))
	p.Gauge("failed", "Whether a part has failed: the runtime, whose lanes are on the CPU then, or the medium, on which nothing is durable then.",
		one(r.Runtime.Failed != ""), "part", "runtime")
	p.Gauge("failed", "Whether a part has failed: the runtime, whose lanes are on the CPU then, or the medium, on which nothing is durable then.",
		one(r.Device.Failed != ""), "part", "medium")
	p.Gauge("device_size_bytes", "Size of the namespace.", float64(r.Device.Size))
	p.Gauge("pinned_bytes", "Memory that is pinned for the controller.", float64(r.Pinned))
	p.Gauge("inodes_known", "Inodes that the kernel knows.", float64(r.FUSE.Nodes))

	p.Histograms("operation_duration_seconds", "How long operations took, by layer and kind.", r.Times)

	v := r.Volume
	for _, c := range []struct {
		name, help    string
		read, written int64
	}{
		{"fuse_bytes_total", "Bytes of files in the kernel's requests.", r.FUSE.ReadBytes, r.FUSE.WrittenBytes},
		{"data_bytes_total", "Bytes of files that the device moved, in whole blocks.", v.DataRead, v.DataWritten},
		{"copied_bytes_total", "Bytes of files that the daemon's CPU copied.", v.CopiedRead, v.CopiedWritten},
		{"metadata_bytes_total", "Bytes of metadata that the device moved.", v.MetadataRead, v.MetadataWritten},
	} {
		p.Counter(c.name, c.help, float64(c.read), "direction", "read")
		p.Counter(c.name, c.help, float64(c.written), "direction", "written")
	}
	idle := cmp.Or(r.FUSE.SchedIdle, &schedidle.Stats{})
	p.Counter("sched_idle_total", "How often a thread that serves requests got the policy SCHED_IDLE.", float64(idle.Times))
	p.Counter("sched_idle_pauses_total", "How often one lost it because other programs kept it from running.", float64(idle.Pauses))
	p.Counter("sched_idle_left_total", "How often one gave it up before a request by a GPU's lanes or a block device's io_uring.", float64(idle.Left))
	p.Counter("journal_written_bytes_total", "Bytes written to the journal.", float64(v.JournalWritten))
	p.Counter("commits_total", "Commits of the journal.", float64(v.Commits))
	if r.Full != nil {
		p.Counter("backing_store_full_writes_total", "Writes that were refused because the backing store was full.", float64(r.Full.Refused))
	}
	for _, q := range r.Queues {
		where := r.Runtime.Name
		if q.CPU {
			where = "host"
		}
		labels := []string{"queue", fmt.Sprint(q.QID), "lane", where}
		if len(r.Members) > 0 {
			labels = append(labels, "member", fmt.Sprint(q.Member))
		}
		count := func(name, help string, n uint64, more ...string) {
			p.Counter("queue_"+name, help, float64(n), append(labels[:len(labels):len(labels)], more...)...)
		}
		count("commands_total", "Commands posted.", q.Commands)
		count("shortcuts_total", "Of the commands, those that took no rings.", q.Shortcuts)
		count("completions_total", "Completions taken.", q.Completions)
		count("bytes_total", "Bytes of commands that succeeded.", q.BytesRead, "direction", "read")
		count("bytes_total", "Bytes of commands that succeeded.", q.BytesWritten, "direction", "written")
		count("doorbells_total", "Doorbell writes.", q.SQDoorbells, "of", "sq")
		count("doorbells_total", "Doorbell writes.", q.CQDoorbells, "of", "cq")
		count("errors_total", "Completions with a status other than success.", q.Errors)
		count("timeouts_total", "Commands that did not complete in time.", q.Timeouts)
	}
	if n := r.Runtime.Chosen; n != nil {
		for kind, count := range map[string]uint64{"gpu": n.GPU, "cpu_gpu_late": n.Late, "cpu_gpu_shared": n.Small, "cpu_host_memory": n.Host, "cpu_software": n.Software} {
			p.Counter("lanes_chosen_total", "Requests for lanes on the GPU, and for those on the CPU because the GPU was late, is shared, or has no part in them.", float64(count), "kind", kind)
		}
	}
	d.vramPage(p)
	return p, nil
}

// vramPage adds what is in device memory.
func (d *daemon) vramPage(p *metrics.Page) {
	s, err := d.share.stats()
	if err != nil {
		return // the mount shares none
	}
	p.Gauge("vram_size_bytes", "Device memory for programs.", float64(s.Size))
	p.Gauge("vram_used_bytes", "Device memory that holds files.", float64(s.Used))
	p.Counter("vram_loaded_bytes_total", "Bytes of files read into device memory.", float64(s.Loaded))
	p.Counter("vram_shared_requests_total", "Requests that found their range in device memory.", float64(s.Shared))
	p.Counter("vram_evicted_total", "Ranges that were evicted.", float64(s.Evicted))
	for _, r := range []struct {
		memory          string
		requests, bytes float64
	}{
		{"device", float64(s.Rings.Device.Requests), float64(s.Rings.Device.Bytes)},
		{"stage", float64(s.Rings.Stage.Requests), float64(s.Rings.Stage.Bytes)},
	} {
		p.Counter("ring_requests_total", "Requests of rings, by where their bytes went or came from.", r.requests, "memory", r.memory)
		p.Counter("ring_bytes_total", "Bytes of requests of rings, by where they went or came from.", r.bytes, "memory", r.memory)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
