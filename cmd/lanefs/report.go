package main

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// report is what `lanefs stat --json` prints; its names are part of the command line's promise. Counters count from the
// mount on, sizes are bytes.
type report struct {
	Dir       string    `json:"dir"`
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	Mounted   time.Time `json:"mounted"`
	Log       string    `json:"log,omitempty"`
	ReadOnly  bool      `json:"read_only"` // asked for, or since an error
	Simulated bool      `json:"simulated"` // the controller is software
	Pinned    int64     `json:"pinned_bytes"`
	HeapLimit int64     `json:"heap_limit_bytes"` // of Go's memory

	Full *fullReport `json:"backing_store_full,omitempty"` // once a write was refused for lack of room, or while commits wait

	Runtime runtimeReport  `json:"runtime"`
	Device  deviceReport   `json:"device"`
	Members []memberReport `json:"members,omitempty"` // of an array, in the order of the command line
	Queues  []queueCounted `json:"queues"`
	Total   queueCounters  `json:"total"`
	Volume  volumeReport   `json:"volume"`
	FUSE    fuseReport     `json:"fuse"`
	Share   *shareReport   `json:"share,omitempty"`

	// Times are the latencies of each layer, from the kernel's requests down to the controller.
	Times []latency.Summary `json:"times"`
}

// fullReport says what became of writes for which the backing store had no room.
type fullReport struct {
	Since   *time.Time `json:"since,omitempty"` // nil: none was refused for a while
	Refused uint64     `json:"refused_writes"`  // since the mount
	Last    string     `json:"last,omitempty"`
	Commits *time.Time `json:"commits_waiting_since,omitempty"`
	Why     string     `json:"commits_waiting_why,omitempty"`
}

func newFullReport(f namespace.Full, h *ext4.Held) *fullReport {
	if f.Refused == 0 && h == nil {
		return nil
	}
	r := &fullReport{Refused: f.Refused, Last: f.Last}
	if !f.Since.IsZero() {
		r.Since = &f.Since
	}
	if h != nil {
		r.Commits, r.Why = &h.Since, oneLine(h.Err)
	}
	return r
}

func (r *fullReport) String() string {
	text := "backing store"
	if r.Since != nil {
		text += " full since " + r.Since.Format(time.DateTime)
	}
	text += fmt.Sprintf(": %d writes refused", r.Refused)
	if r.Commits != nil {
		text += ", commits waiting since " + r.Commits.Format(time.DateTime)
	}
	if r.Last != "" {
		text += "; last: " + r.Last
	}
	return text
}

type runtimeReport struct {
	Name   string      `json:"name"`
	Device string      `json:"device"`
	Arch   string      `json:"arch"`
	PCI    string      `json:"pci,omitempty"`
	More   []gpuReport `json:"more,omitempty"`   // further GPUs of the mount
	Failed string      `json:"failed,omitempty"` // why the lanes have left it for the CPU
	Left   int64       `json:"left,omitempty"`   // bytes of its memory that are never freed since

	Memory  controller.MemoryMode `json:"memory_mode"`
	Bells   string                `json:"doorbells"`               // how lanes ring
	NoBAR   string                `json:"doorbells_why,omitempty"` // why not in a better way
	Chosen  *chosenReport         `json:"chosen,omitempty"`        // where lanes on the CPU stand beside those on a GPU
	Refused []string              `json:"refused,omitempty"`       // what auto tried in vain, the best first, and why
	Copies  *copyengine.Counters  `json:"copies,omitempty"`        // of a software controller, to and from a GPU's memory
}

// gpuReport is one of several GPUs.
type gpuReport struct {
	PCI    string `json:"pci"`
	Device string `json:"device"`
	Arch   string `json:"arch"`
}

// chosenReport says how many requests went to lanes of which kind, and why.
type chosenReport struct {
	GPU      uint64 `json:"gpu"`
	Late     uint64 `json:"cpu_gpu_late"`
	Small    uint64 `json:"cpu_gpu_shared"`
	Host     uint64 `json:"cpu_host_memory"`
	Software uint64 `json:"cpu_software"`
	Now      bool   `json:"gpu_late_now"`
}

type deviceReport struct {
	Name          string `json:"name"`
	Model         string `json:"model"`
	Serial        string `json:"serial"`
	Firmware      string `json:"firmware"`
	NSID          uint32 `json:"nsid"`
	Size          int64  `json:"size"`
	BlockSize     int64  `json:"block_size"`
	MaxTransfer   int64  `json:"max_transfer"`
	Queues        int    `json:"queue_pairs"`
	Depth         int    `json:"depth"`
	VolatileCache bool   `json:"volatile_cache"`
	HostBuffer    int64  `json:"host_memory_buffer,omitempty"` // bytes of the host's memory that the drive has for itself
	Path          string `json:"path,omitempty"`               // how a software controller reaches its image or block device
	Failed        string `json:"failed,omitempty"`             // why nothing is said to be durable any more
}

// memberReport is a device of an array.
type memberReport struct {
	Name     string `json:"name"`
	Model    string `json:"model"`
	Serial   string `json:"serial"`
	Firmware string `json:"firmware"`
	NSID     uint32 `json:"nsid"`
	Size     int64  `json:"size"`
}

// queueCounters are counted by the lane's own kernel code, but for the commands that need none.
type queueCounters struct {
	Commands     uint64 `json:"commands"`
	Shortcuts    uint64 `json:"shortcuts"` // of them, those that took no rings
	Completions  uint64 `json:"completions"`
	BytesRead    uint64 `json:"bytes_read"`
	BytesWritten uint64 `json:"bytes_written"`
	SQDoorbells  uint64 `json:"sq_doorbells"`
	CQDoorbells  uint64 `json:"cq_doorbells"`
	Errors       uint64 `json:"errors"`   // completions with a status other than success
	Timeouts     uint64 `json:"timeouts"` // commands that did not complete in time
	Late         uint64 `json:"late"`     // and did so afterwards
	Spurious     uint64 `json:"spurious"` // completions of nothing in flight
	Rejected     uint64 `json:"rejected"` // work that was not posted
}

type queueCounted struct {
	QID uint16 `json:"qid"`
	CPU bool   `json:"cpu,omitempty"` // its lane runs on the CPU, beside those on a GPU
	GPU string `json:"gpu,omitempty"` // the further GPU on which its lane runs

	Member int `json:"member,omitempty"` // of an array: whose it is, the first being 0
	queueCounters
}

func queueReport(q engine.LaneStats, member int) queueCounted {
	c := queueCounted{QID: q.QID, CPU: q.CPU, GPU: q.GPU, Member: member}
	c.add(q)
	return c
}

func (c *queueCounters) add(q engine.LaneStats) {
	c.Commands += q.Commands
	c.Shortcuts += q.Lone
	c.Completions += q.Completions
	c.BytesRead += q.BytesRead
	c.BytesWritten += q.BytesWritten
	c.SQDoorbells += q.SQDoorbells
	c.CQDoorbells += q.CQDoorbells
	c.Errors += q.Errors
	c.Timeouts += q.Timeouts
	c.Late += q.Late
	c.Spurious += q.Spurious
	c.Rejected += q.Rejected
}

// volumeReport counts what ext4 moved: file contents in whole blocks, what of them the CPU copied, and the rest.
type volumeReport struct {
	DataRead        int64 `json:"data_read"`
	DataWritten     int64 `json:"data_written"`
	CopiedRead      int64 `json:"copied_read"`
	CopiedWritten   int64 `json:"copied_written"`
	MetadataRead    int64 `json:"metadata_read"`
	MetadataWritten int64 `json:"metadata_written"`
	JournalWritten  int64 `json:"journal_written"`
	Commits         int64 `json:"commits"`
	Cached          int64 `json:"metadata_cached"`
}

// fuseReport says how the kernel's requests come, and counts them.
type fuseReport struct {
	Transport    string           `json:"transport"`
	WhyNot       string           `json:"not_io_uring,omitempty"`   // why not by io_uring, if that was asked for, and the remedy
	SchedIdle    *schedidle.Stats `json:"sched_idle,omitempty"`     // of threads that serve requests
	NoSchedIdle  string           `json:"not_sched_idle,omitempty"` // why not, if that was wanted
	Reads        int64            `json:"reads"`
	ReadBytes    int64            `json:"read_bytes"`
	Writes       int64            `json:"writes"`
	WrittenBytes int64            `json:"written_bytes"`
	Nodes        int              `json:"nodes"`
}
