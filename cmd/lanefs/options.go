package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/nvmeq"
)

// mountConfig is what a mount needs to know. The foreground process makes it and the daemon reads it back.
type mountConfig struct {
	Device     string // image file, absolute
	Dir        string // mount point, absolute and without symbolic links
	GPU        string // auto, host, hip, cuda
	Foreground bool
	Log        string // file, absolute; empty: beside the control socket

	ReadOnly   bool
	NoRecovery bool
	Discard    bool
	AllowOther bool
	WriteBack  bool // the kernel gathers small writes before it sends them
	MinixDF    bool // df counts the blocks of the format itself, too
	Errors     ext4.ErrorMode
	Commit     time.Duration // 0: the file system's own
	Cache      int64         // bytes of metadata; 0: the file system's own
	Pinned     int64         // bytes of pinned memory at most; 0: blockdev's own

	Lanes int // queue pairs; 0: as many as suit the machine
	Depth int // commands in flight on one; 0: as many as suit the controller
	LBA   int // block size of a software controller; 0: 512
	NSID  uint32

	MemoryMode *nvmeq.MemoryMode // what is in device memory; nil: as much as works
	Thread     bool              // lanes are single threads of a GPU instead of waves
	GPUError   string            // when the GPU fails: host or empty, go on on the CPU; ro, go on reading there
	Doorbell   nvmeq.DoorbellRoute
	Batch      bool // one launch per batch instead of resident kernels

	Share share.Limits // of one user; what is 0 has its default

	Pool int64  // bytes of device memory for programs; -1: as many as suit the device
	VRAM string // PCI function and BAR that hold the host runtime's device memory; empty: memfds
	VFIO string // way to the IOMMU of a PCI function; empty: what the machine offers

	Kernel []string // options that the kernel's VFS carries out
}

// flags are the options without a value.
var flags = map[string]func(*mountConfig){
	"ro":                  func(c *mountConfig) { c.ReadOnly = true },
	"rw":                  func(c *mountConfig) { c.ReadOnly = false },
	"norecovery":          func(c *mountConfig) { c.NoRecovery = true },
	"noload":              func(c *mountConfig) { c.NoRecovery = true }, // ext4's other name for it
	"discard":             func(c *mountConfig) { c.Discard = true },
	"nodiscard":           func(c *mountConfig) { c.Discard = false },
	"allow_other":         func(c *mountConfig) { c.AllowOther = true },
	"writeback_cache":     func(c *mountConfig) { c.WriteBack = true },
	"minixdf":             func(c *mountConfig) { c.MinixDF = true },
	"bsddf":               func(c *mountConfig) { c.MinixDF = false },
	"batch":               func(c *mountConfig) { c.Batch = true },
	"default_permissions": func(*mountConfig) {}, // always: the kernel checks permissions
	"acl":                 func(*mountConfig) {}, // these two are always so, too: for lines of /etc/fstab that were ext4's
	"user_xattr":          func(*mountConfig) {},
}

// vfs are options that the kernel carries out; each names those it takes back.
var vfs = map[string]string{
	"nosuid": "suid", "suid": "nosuid", "nodev": "dev", "dev": "nodev", "noexec": "exec", "exec": "noexec",
	"noatime": "relatime strictatime", "relatime": "noatime strictatime", "atime": "noatime", "strictatime": "noatime relatime",
	"nostrictatime": "strictatime", "norelatime": "", "nodiratime": "diratime", "diratime": "nodiratime",
	"sync": "async", "async": "sync", "dirsync": "",
}

// usual are those of them that hold anyway; they only take others back.
var usual = map[string]bool{"suid": true, "dev": true, "exec": true, "atime": true, "relatime": true, "norelatime": true, "nostrictatime": true, "diratime": true, "async": true}

// noise is what /etc/fstab carries for others: mount(8), systemd, fsck.
var noise = map[string]bool{"defaults": true, "auto": true, "noauto": true, "user": true, "nouser": true, "users": true,
	"owner": true, "group": true, "nofail": true, "_netdev": true}

// tuning is what /etc/fstab tells the kernel's ext4 about how to go about its work (ext4(5)). No file reads differently
// for it, and nothing that was synced is less safe, so it is accepted and changes nothing. True may have a number.
var tuning = map[string]bool{"auto_da_alloc": true, "barrier": true, "block_validity": false, "delalloc": false,
	"dioread_lock": false, "dioread_nolock": false, "i_version": false, "init_itable": true, "inode_readahead_blks": true,
	"iversion": false, "journal_checksum": false, "journal_ioprio": true, "lazytime": false, "loud": false, "max_batch_time": true,
	"mb_optimize_scan": true, "min_batch_time": true, "noauto_da_alloc": true, "nobarrier": false, "noblock_validity": false,
	"nodelalloc": false, "nogrpid": false, "noinit_itable": false, "nolazytime": false, "noquota": false, "silent": false,
	"stripe": true, "sysvgroups": false}

// values are the options with a value.
var values = map[string]func(*mountConfig, string) error{
	"gpu": func(c *mountConfig, v string) error { c.GPU = v; return checkGPU(v) },
	"log": func(c *mountConfig, v string) error { c.Log = v; return nil },
	"commit": func(c *mountConfig, v string) error {
		n, err := number(v, 0, 300)
		c.Commit = time.Duration(n) * time.Second
		return err
	},
	"cache": func(c *mountConfig, v string) (err error) { c.Cache, err = size(v); return err },
	"pinned": func(c *mountConfig, v string) (err error) {
		if c.Pinned, err = size(v); err == nil && c.Pinned == 0 {
			err = fmt.Errorf("want a size such as 1G")
		}
		return err
	},
	"lanes": func(c *mountConfig, v string) (err error) { c.Lanes, err = number(v, 1, 1024); return err },
	"depth": func(c *mountConfig, v string) (err error) { c.Depth, err = number(v, 1, 65535); return err },
	"nsid": func(c *mountConfig, v string) error {
		n, err := number(v, 1, math.MaxInt32)
		c.NSID = uint32(n)
		return err
	},
	"vram": func(c *mountConfig, v string) (err error) {
		if !strings.ContainsAny(v, ":.") { // as every PCI address does
			c.Pool, err = size(v)
			return err
		}
		c.VRAM = v
		return checkVRAM(v)
	},
	"share_connections": func(c *mountConfig, v string) (err error) { c.Share.Connections, err = number(v, 1, 1024); return err },
	"share_descriptors": func(c *mountConfig, v string) (err error) { c.Share.Descriptors, err = number(v, 1, 1<<20); return err },
	"share_rings":       func(c *mountConfig, v string) (err error) { c.Share.Rings, err = number(v, 1, 1<<20); return err },
	"share_handles":     func(c *mountConfig, v string) (err error) { c.Share.Handles, err = number(v, 1, 1<<30); return err },
	"share_registered":  func(c *mountConfig, v string) (err error) { c.Share.Registered, err = someBytes(v); return err },
	"share_shared":      func(c *mountConfig, v string) (err error) { c.Share.Shared, err = someBytes(v); return err },
	"share_held":        func(c *mountConfig, v string) (err error) { c.Share.Held, err = someBytes(v); return err },
	"vfio":              func(c *mountConfig, v string) error { c.VFIO = v; return checkVFIO(v) },
	"data": func(_ *mountConfig, v string) error {
		if v != "ordered" {
			return fmt.Errorf("want ordered, the only mode")
		}
		return nil
	},
	"lba": func(c *mountConfig, v string) error {
		if c.LBA, _ = strconv.Atoi(v); !slices.Contains([]int{512, 1024, 2048, 4096}, c.LBA) {
			return fmt.Errorf("want 512, 1024, 2048 or 4096")
		}
		return nil
	},
	"gpu_error": func(c *mountConfig, v string) error {
		if c.GPUError = v; v != "host" && v != "ro" {
			return fmt.Errorf("want host or ro")
		}
		return nil
	},
	"doorbell": func(c *mountConfig, v string) error {
		for r := nvmeq.DoorbellAuto; r <= nvmeq.DoorbellBridge; r++ {
			if r.String() == v {
				c.Doorbell = r
				return nil
			}
		}
		return fmt.Errorf("want auto, direct, iomem or bridge")
	},
	"lane": func(c *mountConfig, v string) error {
		if c.Thread = v == "thread"; !c.Thread && v != "wave" {
			return fmt.Errorf("want thread or wave")
		}
		return nil
	},
	"memory-mode": func(c *mountConfig, v string) error {
		if c.MemoryMode = nil; v == "auto" {
			return nil
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 15 {
			return fmt.Errorf("want auto or a number from 0 to 15")
		}
		m := nvmeq.MemoryMode(n)
		c.MemoryMode = &m
		return nil
	},
	"errors": func(c *mountConfig, v string) (err error) { c.Errors, err = errorMode(v); return err },
}

// parseOptions sets c from the arguments of -o, each a list with commas. Of options that exclude one another the last
// counts, as with mount(8).
func parseOptions(c *mountConfig, lists []string) error {
	for _, o := range strings.Split(strings.Join(lists, ","), ",") {
		name, value, valued := strings.Cut(o, "=")
		set := values[name]
		numbered, tuned := tuning[name]
		switch {
		case o == "" || noise[o] || strings.HasPrefix(o, "x-") || strings.HasPrefix(o, "X-") || name == "comment":
		case flags[o] != nil:
			flags[o](c)
		case !valued && isVFS(o):
			c.Kernel = slices.DeleteFunc(c.Kernel, func(k string) bool { return k == o || slices.Contains(strings.Fields(vfs[o]), k) })
			if !usual[o] {
				c.Kernel = append(c.Kernel, o)
			}
		case tuned && (numbered || !valued):
			if _, err := strconv.ParseUint(value, 10, 32); valued && err != nil {
				return fmt.Errorf("option %q: want a number", o)
			}
		case valued && set != nil:
			if err := set(c, value); err != nil {
				return fmt.Errorf("option %q: %w", o, err)
			}
		case set != nil:
			return fmt.Errorf("option %q needs a value: %s=…", o, name)
		case valued && (flags[name] != nil || isVFS(name) || tuned):
			return fmt.Errorf("option %q takes no value", o)
		default:
			return fmt.Errorf("unknown option %q; LaneFS knows %s", o, strings.Join(knownOptions(), ", "))
		}
	}
	return nil
}

func isVFS(o string) bool {
	_, ok := vfs[o]
	return ok
}

func knownOptions() []string {
	var all []string
	all = slices.AppendSeq(all, maps.Keys(flags))
	all = slices.AppendSeq(all, maps.Keys(vfs))
	for v := range values {
		all = append(all, v+"=…")
	}
	slices.Sort(all)
	return all
}

func errorMode(v string) (ext4.ErrorMode, error) {
	switch v {
	case "continue":
		return ext4.ErrorsContinue, nil
	case "remount-ro":
		return ext4.ErrorsReadOnly, nil
	case "panic":
		return ext4.ErrorsPanic, nil
	}
	return 0, fmt.Errorf("want remount-ro, continue or panic")
}

func number(v string, low, high int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("want a number from %d to %d", low, high)
	}
	return n, nil
}

// size reads bytes with an optional k, M or G.
func size(v string) (int64, error) {
	shift := 0
	digits := strings.TrimRight(v, "kKmMgG")
	switch strings.ToLower(v[len(digits):]) {
	case "":
	case "k":
		shift = 10
	case "m":
		shift = 20
	case "g":
		shift = 30
	default:
		digits = ""
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("want a size such as 256M")
	}
	return n << shift, nil
}

// someBytes is size for what 0 would not mean none of.
func someBytes(v string) (int64, error) {
	n, err := size(v)
	if err == nil && n == 0 {
		err = fmt.Errorf("want a size such as 256M")
	}
	return n, err
}

func checkGPU(v string) error {
	if !slices.Contains([]string{"auto", "host", "hip", "cuda"}, v) {
		return fmt.Errorf("want auto, host, hip or cuda")
	}
	return nil
}
