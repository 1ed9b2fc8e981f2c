package bench

import (
	"time"

	"github.com/lanefs/lanefs/nvmeq/engine"
)

// Result is what Run has measured.
type Result struct {
	Job     // as it was carried out: lanes and depth may be fewer
	Route   engine.DoorbellRoute
	Elapsed time.Duration
	Flush   time.Duration // after the writes

	Read, Write Histogram    // of the commands that succeeded
	Parts       [5]Histogram // StepNames

	Failed     uint64 // commands
	FirstError error
	Checked    uint64 // blocks that a kernel has compared
	Wrong      uint64 // of them, blocks that are not what was written
	Unwritten  uint64 // of them, blocks without a word of what an earlier run with this seed wrote anywhere
	FirstWrong string
	Doorbells  uint64 // that lanes have rung for submissions, while it was measured
}

// StepNames name the steps of a command, in their order.
var StepNames = [...]string{"build", "post", "ring", "wait", "reap"}

func (r *Result) add(w *worker) {
	r.Read.Merge(&w.reads)
	r.Write.Merge(&w.writes)
	for i := range r.Parts {
		r.Parts[i].Merge(&w.parts[i])
	}
}

func (r *Result) count(before, after []engine.LaneStats) {
	for i, s := range after {
		r.Doorbells += s.SQDoorbells - before[i].SQDoorbells
	}
}

// Commands is how many have succeeded.
func (r *Result) Commands() uint64 { return r.Read.n + r.Write.n }

// Report is what `lanefs bench --json` prints. Times are nanoseconds, sizes bytes.
type Report struct {
	Version     string    `json:"version"`
	When        time.Time `json:"when"`
	Device      string    `json:"device"`
	Model       string    `json:"model"`
	Firmware    string    `json:"firmware"`
	Simulated   bool      `json:"simulated"` // the controller is software
	NSID        uint32    `json:"nsid"`
	BlockSize   int64     `json:"lba_bytes"`
	Offset      int64     `json:"region_offset"` // of the region, on the device
	Size        int64     `json:"region_bytes"`
	Runtime     string    `json:"runtime"` // host, cuda, hip
	Lanes       string    `json:"lanes_on"`
	Seed        uint64    `json:"seed"`
	Interrupted bool      `json:"interrupted"`
	Runs        []*Line   `json:"runs"`
}

// Line is one measurement, of lanes or of fio.
type Line struct {
	By         string `json:"by"` // "lanefs", or fio and its version, and through what
	Block      int64  `json:"block"`
	Lanes      int    `json:"lanes"` // of fio jobs
	Depth      int    `json:"depth"`
	Queue      int    `json:"queue_entries,omitempty"`
	Batch      int    `json:"batch,omitempty"`
	Reads      int    `json:"read_percent"`
	Order      string `json:"order"` // random, sequential
	MemoryMode int    `json:"memory_mode"`
	Doorbell   string `json:"doorbell,omitempty"`
	Traced     bool   `json:"traced"`            // its lanes noted the steps of each command
	Refused    string `json:"refused,omitempty"` // why it was not measured
	Note       string `json:"note,omitempty"`    // what has to be known of it

	Elapsed   time.Duration `json:"elapsed_ns"`
	Commands  uint64        `json:"commands"` // that succeeded
	IOPS      float64       `json:"iops"`
	Bandwidth float64       `json:"bytes_per_second"`
	Failed    uint64        `json:"failed"`
	Error     string        `json:"first_error,omitempty"`
	PerBell   float64       `json:"commands_per_doorbell,omitempty"`
	Flush     time.Duration `json:"flush_ns,omitempty"` // after the writes

	Verified   bool   `json:"verified"` // kernels wrote and checked patterns, between the commands
	Checked    uint64 `json:"checked_blocks"`
	Wrong      uint64 `json:"wrong_blocks"`
	Unwritten  uint64 `json:"unwritten_blocks,omitempty"`
	FirstWrong string `json:"first_wrong,omitempty"`

	Read  *Times      `json:"read,omitempty"`
	Write *Times      `json:"write,omitempty"`
	Steps []StepTimes `json:"steps,omitempty"`
}

// Times are the latencies of the commands of one kind.
type Times struct {
	Count uint64        `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	Least time.Duration `json:"min_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P95   time.Duration `json:"p95_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p99_9_ns"`
	P9999 time.Duration `json:"p99_99_ns"`
	Most  time.Duration `json:"max_ns"`
}

// StepTimes are those of one step of all commands.
type StepTimes struct {
	Step string `json:"step"`
	Times
}

func newTimes(h *Histogram) *Times {
	if h.n == 0 {
		return nil
	}
	return &Times{h.n, h.sum / time.Duration(h.n), h.least, h.Quantile(.5), h.Quantile(.9), h.Quantile(.95), h.Quantile(.99), h.Quantile(.999),
		h.Quantile(.9999), h.most}
}

// Order is how a job takes its blocks, in one word.
func (j *Job) Order() string {
	if j.Sequential {
		return "sequential"
	}
	return "random"
}

// NewLine describes a job that lanes carry out; Set fills in what was measured.
func NewLine(j Job) *Line {
	if j.Batch == 0 {
		j.Batch = j.Depth
	}
	if j.Queue == 0 {
		j.Queue = j.Depth + 1
	}
	return &Line{By: "lanefs", Block: j.Block, Lanes: j.Lanes, Depth: j.Depth, Queue: j.Queue, Batch: min(j.Batch, j.Depth), Reads: j.Reads, Order: j.Order(),
		MemoryMode: int(j.Mode), Doorbell: j.Engine.Doorbell.String(), Traced: j.Steps, Verified: j.Verify}
}

// Set fills in a result.
func (l *Line) Set(r *Result) {
	note := l.Note
	*l = *NewLine(r.Job)
	l.Note = note
	l.Doorbell = r.Route.String()
	l.Elapsed, l.Commands, l.Failed, l.Flush = r.Elapsed, r.Commands(), r.Failed, r.Flush
	if s := r.Elapsed.Seconds(); s > 0 {
		l.IOPS = float64(l.Commands) / s
		l.Bandwidth = l.IOPS * float64(r.Block)
	}
	if r.FirstError != nil {
		l.Error = r.FirstError.Error()
	}
	if r.Doorbells > 0 {
		l.PerBell = float64(l.Commands+l.Failed) / float64(r.Doorbells)
	}
	l.Unwritten = r.Unwritten
	l.Checked, l.Wrong, l.FirstWrong = r.Checked, r.Wrong, r.FirstWrong
	l.Read, l.Write = newTimes(&r.Read), newTimes(&r.Write)
	for i := range r.Parts {
		if t := newTimes(&r.Parts[i]); t != nil {
			l.Steps = append(l.Steps, StepTimes{StepNames[i], *t})
		}
	}
}

// Bad says whether any block was wrong, or any command failed.
func (r *Report) Bad() (wrong, failed uint64) {
	for _, l := range r.Runs {
		wrong, failed = wrong+l.Wrong, failed+l.Failed
	}
	return wrong, failed
}

// Nothing says whether blocks were checked for what an earlier run wrote, and none had a word of it.
func (r *Report) Nothing() bool {
	checked, unwritten := uint64(0), uint64(0)
	for _, l := range r.Runs {
		checked, unwritten = checked+l.Checked, unwritten+l.Unwritten
	}
	return checked > 0 && unwritten == checked
}

// all are the columns of a table.
func (t *Times) all() []time.Duration {
	return []time.Duration{t.Mean, t.Least, t.P50, t.P90, t.P95, t.P99, t.P999, t.P9999, t.Most}
}
