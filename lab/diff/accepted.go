package diff

import "golang.org/x/sys/unix"

// acceptance is one difference that LaneFS cannot remove, or that is intended.
type acceptance struct {
	name   string
	reason string
	// adjust makes l, LaneFS's result, what the kernel's would be, if this is the difference. nil: the generators or
	// comparisons avoid the difference, and avoided says where.
	adjust  func(c *Config, o *Op, l, r *Result)
	avoided string
}

// accepted is every difference between LaneFS through FUSE and the kernel's ext4 that a run does not report.
var accepted = []acceptance{
	{
		name: "times of files, with the write-back cache",
		reason: "the kernel keeps the times of a file with dirty pages itself, by a clock that is exact to a tick; " +
			"an operation that changes nothing (a truncate to the same size) does not reach LaneFS",
		adjust: func(c *Config, _ *Op, l, r *Result) {
			if !c.Left.WriteBack {
				return
			}
			for i := range min(len(l.Probes), len(r.Probes)) {
				if p, q := &l.Probes[i], &r.Probes[i]; p.Stat.Mode&unix.S_IFMT == unix.S_IFREG {
					p.Changed, p.Stat.Order = q.Changed, q.Stat.Order
				}
			}
		},
	},
	{
		name:   "SEEK_DATA on a file with a block map",
		reason: "the kernel's ext4 skips what it has not yet allocated blocks for",
		adjust: func(_ *Config, o *Op, _, r *Result) {
			if o.Kind == OpSeekMap {
				r.Note = ""
			}
		},
	},
	{
		name: "blocks behind the end of a file, with the write-back cache",
		reason: "truncating to the size that the file has frees them; but to LaneFS, which does not yet have all the file's bytes, " +
			"it may look like growing, which keeps them",
		avoided: "run.comparable",
	},
	{
		name:   "which times change, with inodes of 128 bytes",
		reason: "they hold whole seconds, so it depends on when the second ends",
		adjust: func(c *Config, _ *Op, l, r *Result) {
			if !c.Volume.WholeSeconds {
				return
			}
			for i := range min(len(l.Probes), len(r.Probes)) {
				l.Probes[i].Changed, l.Probes[i].Stat.Order = r.Probes[i].Changed, r.Probes[i].Stat.Order
			}
		},
	},
	{
		name:   "the end of a directory",
		reason: "on a FUSE file system Linux itself takes the directory's size; ext4 seeks in hashes",
		adjust: func(c *Config, o *Op, l, r *Result) {
			dir := c.NoProbe
			for _, p := range l.Probes {
				dir = dir || p.What == "slot" && p.Stat.Mode&unix.S_IFMT == unix.S_IFDIR
			}
			if o.Kind == OpLseek && o.Flags == unix.SEEK_END && dir && l.Errno == 0 {
				l.Errno, l.Ret = r.Errno, r.Ret
			}
		},
	},
	{
		name:   "names read while the directory changes",
		reason: "the kernel's ext4 leaves out \".\" and \"..\" when the directory gets its index between two reads",
		adjust: func(_ *Config, o *Op, _, r *Result) {
			if o.Kind == OpChurn {
				r.Note = ""
			}
		},
	},
	{
		name: "contents of small files, with inline data",
		reason: "the kernel's ext4 (6.18 at least) loses them: what is written after a truncate has grown a file beyond its inode " +
			"is lost when its pages leave the cache, and so is what such a file held, from the cache, after any fallocate(2) of it, even " +
			"one that was refused; the data profiles compare with the model instead",
		avoided: "Run; Op.fitInline in the others",
	},
	{
		name: "a stranger's chown(2) of nothing",
		reason: "ext4 refuses it for a file with set-ID bits; while the file is open for writing LaneFS cannot tell it from the " +
			"kernel's clearing of the bits before a write, which must not fail, so it reports success and changes nothing",
		adjust: func(_ *Config, o *Op, l, r *Result) {
			if (o.Kind == OpChown || o.Kind == OpFchown) && o.As != 0 && o.UID == -1 && o.GID == -1 && l.Errno == 0 && r.Errno == unix.EPERM {
				l.Errno = r.Errno
			}
		},
	},
	{
		name:   "statfs, with a journal that has a block map",
		reason: "the kernel's ext4 counts the blocks of the map among those that files could have",
		adjust: func(_ *Config, o *Op, l, r *Result) {
			if d := r.Ret - l.Ret; o.Kind == OpStatfs && d > 0 && d <= 64 {
				l.Ret = r.Ret
			}
		},
	},
	{
		name: "utimensat(2) with times that the volume cannot hold, with the write-back cache",
		reason: "the kernel shows what it was asked to set until it reads the inode again; without the cache it shows what LaneFS " +
			"answers, which is what ext4 has",
		avoided: "Op.fitTimes",
	},
	{
		name: "times on a write-back mount and on its volume",
		reason: "the kernel does not send a time that stayed the same within a tick, and an O_DIRECT write changes it on the " +
			"volume alone, for the kernel goes on to trust its own",
		avoided: "run.writeBackGrain",
	},
	{
		name:    "ENOSPC of a write through a map",
		reason:  "a FUSE mount reserves no blocks at the page fault; the next fsync reports the error",
		avoided: "Op.alone",
	},
	{
		name:    "times of data, within a tick",
		reason:  "LaneFS and kernels before 6.13 stamp a file that is written again and again once every 4 ms",
		avoided: "Probe.Grain",
	},
	{
		name:    "modification time behind the change time",
		reason:  "some operations of the kernel's ext4 stamp twice, first both times and then the change time; LaneFS stamps once",
		avoided: "compareProbes; here for the kernel against itself",
		adjust: func(c *Config, _ *Op, l, r *Result) {
			if c.Left.Kind != "kernel" {
				return
			}
			for i := range min(len(l.Probes), len(r.Probes)) {
				l.Probes[i].Stat.Order = r.Probes[i].Stat.Order
			}
		},
	},
	{
		name:    "access times",
		reason:  "the kernel keeps those of a FUSE mount itself; both sides are mounted noatime, so that what utimensat(2) sets stays",
		avoided: "mountKernel, openVolume",
	},
	{
		name:    "collapse and insert range",
		reason:  "Linux's FUSE answers EOPNOTSUPP by itself, and so does package ext4",
		avoided: "the data profile",
	},
	{
		name:    "O_DIRECT on bytes that are no whole sectors",
		reason:  "ext4 answers EINVAL, FUSE has no such limit",
		avoided: "dataGen",
	},
	{
		name:    "RENAME_WHITEOUT",
		reason:  "it is for the upper layer of an overlay; package fs compares it",
		avoided: "namesGen.rename",
	},
	{
		name:    "blocks of a file written through a map",
		reason:  "the kernel's ext4 allocates for whole folios; LaneFS for what is written",
		avoided: "blocksAgree",
	},
	{
		name:    "where data ends and a hole begins",
		reason:  "SEEK_DATA and SEEK_HOLE may call zeroes data",
		avoided: "seekMap compares what they skip instead",
	},
}

// adjust removes accepted differences from l and r.
func adjust(c *Config, o *Op, l, r *Result) {
	for _, a := range accepted {
		if a.adjust != nil {
			a.adjust(c, o, l, r)
		}
	}
}
