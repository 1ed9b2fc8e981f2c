// Package doctor examines a machine: what of LaneFS works on it, what does not, and the remedy.
//
// The nouns. A [Finding] is a line for people. A [Drive], a [Memory] and a [Pair] of them are what findings are made from. A [Ladder]
// is a conclusion: one says where queues and data of a mounted drive can be, another how its doorbells are rung. It says what the
// files promise; a mount tries it with real I/O.
//
// The package reads files only: those of sysfs, procfs, /dev and /boot below a root directory, so that a tree taken from another
// machine can be examined like this one. The runtimes, which run the lanes, are opened, and a ring is made, by functions of the caller's.
package doctor

import (
	"strings"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// Finding is one line. What is not OK and not Needed keeps a machine from a drive, a GPU, or a higher rung; what is Needed
// and not OK keeps it from mounting an image file.
type Finding struct {
	Area   string `json:"area"`
	What   string `json:"what"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// Areas, in the order they are examined.
const (
	Basics = "mounting"
	Lanes  = "lanes"
	Kernel = "kernel"
	IOMMU  = "IOMMU and VFIO"
	Drives = "NVMe drives"
	Device = "device memory"
	Paths  = "paths between them"
	Result = "what results"
)

// Report is everything.
type Report struct {
	Findings []Finding `json:"findings"`
	Kernel   Facts     `json:"kernel"`
	Drives   []Drive   `json:"drives"`
	Memories []Memory  `json:"memories"`
	Pairs    []Pair    `json:"pairs"`
	Memory   Ladder    `json:"memory_ladder"`
	Doorbell Ladder    `json:"doorbell_ladder"`
	Next     []Step    `json:"next"` // what to do, in this order
}

// Healthy says whether image files can be mounted.
func (r *Report) Healthy() bool {
	for _, f := range r.Findings {
		if f.Needed && !f.OK {
			return false
		}
	}
	return true
}

// Options of Examine. The zero value is this machine without a look at its runtimes.
type Options struct {
	Root     string // the directory below which the machine's files are
	Runtimes []Runtime
	Rings    Rings
}

// Rings says what a mount does about FUSE over io_uring.
type Rings struct {
	Auto bool         // it takes it unless told otherwise
	Try  func() error // says why it cannot; nil: only files are looked at
}

// examiner holds what was found so far: later areas build on earlier ones.
type examiner struct {
	root
	sys      pci.System
	runtimes []Runtime
	rings    Rings
	opened   []opened        // those that opened
	symbols  map[string]bool // of the kernel, as far as asked for; nil: not read yet
	Report
}

// Examine looks at everything. What cannot be read is a finding, never an error.
func Examine(opt Options) *Report {
	x := &examiner{root: root(opt.Root), sys: pci.System{Root: opt.Root}, runtimes: opt.Runtimes, rings: opt.Rings}
	x.basics()
	x.lanes()
	x.mps()
	x.kernel()
	x.iommu()
	functions, err := x.sys.Functions()
	if err != nil {
		x.add(Finding{Area: Drives, What: "PCI functions", Found: err.Error()})
	}
	x.drives(functions)
	x.memories(functions)
	x.pairs()
	x.ladders()
	x.Next = x.steps()
	return &x.Report
}

// add keeps a finding on one line, whatever an error in it says.
func (x *examiner) add(f Finding) {
	f.Found = strings.ReplaceAll(f.Found, "\n", "; ")
	x.Findings = append(x.Findings, f)
}
