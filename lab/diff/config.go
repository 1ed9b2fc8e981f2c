package diff

import (
	"golang.org/x/sys/unix"
)

// Volume says how to make an image.
type Volume struct {
	Name string
	Size int64
	Mkfs []string // options of mkfs.ext4

	WholeSeconds bool // its times have no parts of a second
	Inline       bool // small files lie in their inodes
}

// Side says how to reach a volume.
type Side struct {
	Kind      string // "lanefs", "direct" or "kernel"
	WriteBack bool   // lanefs: the kernel keeps dirty pages
	IOUring   string // lanefs: "on", "off"; "": as mounts do by themselves
	Sabotage  string // see sabotages
}

// Config is one run.
type Config struct {
	Volume      Volume
	Left, Right Side // Right's Kind "" is none: the left side alone, held against the model
	Profile     Profile
	Seed        uint64
	Ops         int // of each process
	Procs       int
	Proc        int   // the first process's number: chooses its sequence
	Remount     int   // unmount and mount both sides after so many Ops; 0: never
	NoProbe     bool  // do not look at attributes around each Op
	Keep        []int // of the sequence only these, by index; nil: all
	Dir         string
}

// step is an Op and its place in the sequence that it was generated in.
type step struct {
	Op
	index int
}

// Failure is a difference that a run found.
type Failure struct {
	Config Config
	Stage  string // "operation", "tree", "e2fsck", "mount", …
	Proc   int
	Index  int // of the Op in the sequence, -1 after the last
	Op     Op
	Diffs  []string // one line each: what kind of difference, a colon, the difference
	Log    string   // what the left keeper printed
	Hangs  bool     // an operation does not end; Log has the stacks
}

// sequence is the steps of one process.
func (c *Config) sequence(proc int) []step {
	if c.Ops == 0 {
		return nil
	}
	ops := Generate(c.Profile, c.Seed, proc, c.Ops)
	for i := range ops {
		if c.Right.Kind == "" && !c.Volume.Inline && (c.Profile == ProfileData || c.Profile == ProfileDirect) {
			ops[i].alone()
		}
		if c.Left.WriteBack {
			ops[i].fitTimes(c.Volume)
		}
		if c.Volume.Inline && c.Right.Kind != "" {
			ops[i].fitInline()
		}
	}
	var steps []step
	add := func(i int) {
		if c.Remount > 0 && i > 0 && i%c.Remount == 0 {
			steps = append(steps, step{Op{Kind: OpRemount}, i})
		}
		steps = append(steps, step{ops[i], i})
	}
	if c.Keep == nil {
		for i := range ops {
			add(i)
		}
		return steps
	}
	for _, i := range c.Keep {
		if i < len(ops) {
			add(i)
		}
	}
	return steps
}

// alone fits an Op to a volume that may be full, where only the model is compared. The model reads after ENOSPC. Writes
// through a map are left out: a FUSE mount reserves no blocks for them, and only the next fsync reports their failure.
func (o *Op) alone() {
	switch o.Kind {
	case OpOpen:
		o.Flags = o.Flags&^(unix.O_ACCMODE|unix.O_DIRECT) | unix.O_RDWR
	case OpMmapWrite:
		o.Kind, o.Flags = OpPwrite, 0
	}
}

// fitTimes changes the times that an Op sets to ones that the volume can hold.
func (o *Op) fitTimes(v Volume) {
	latest := int64(15032385535)
	if v.WholeSeconds {
		latest = 1<<31 - 1
	}
	for i := range o.Times {
		t := &o.Times[i]
		if t.Nsec == unix.UTIME_NOW || t.Nsec == unix.UTIME_OMIT {
			continue
		}
		if t.Sec = min(max(t.Sec, -1<<31), latest); t.Sec == latest || t.Sec == -1<<31 || v.WholeSeconds {
			t.Nsec = 0
		}
	}
}

// inlineMost is a size that every inode has room for.
const inlineMost = 40

// fitInline changes Ops by which the kernel's ext4 loses data of files that lie in their inodes: see accepted.
func (o *Op) fitInline() {
	switch o.Kind {
	case OpTruncate, OpFtruncate:
		o.Len = min(o.Len, inlineMost)
	case OpFallocate:
		o.Kind = OpFsync
	}
}
