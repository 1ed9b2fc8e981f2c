package mountopt

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// Config is what the options of a mount say. [Default] is the one without options. The tags name the options; those of the
// kernel, and of each limit of the share, are more than one.
type Config struct {
	GPU  string   `opt:"gpu"` // auto, host, hip, cuda; empty: auto
	GPUs []string `opt:"gpu"` // which of that runtime's: ordinals, UUIDs, PCI addresses; nil: the first
	Log  string   `opt:"log"` // file; empty: beside the control socket

	Metrics string `opt:"metrics"` // address or socket for Prometheus; empty: none

	ReadOnly    bool           `opt:"ro"`
	NoRecovery  bool           `opt:"norecovery"`
	Discard     bool           `opt:"discard"`
	AllowOther  bool           `opt:"allow_other"`
	WriteBack   bool           `opt:"writeback_cache"`
	IOUring     fs.IOUring     `opt:"io_uring"`
	NoSchedIdle bool           `opt:"sched_idle"`
	MinixDF     bool           `opt:"minixdf"`
	Errors      ext4.ErrorMode `opt:"errors"`
	Commit      time.Duration  `opt:"commit"` // 0: the file system's own
	Cache       int64          `opt:"cache"`  // bytes of metadata; 0: the file system's own
	Pinned      int64          `opt:"pinned"` // bytes of pinned memory at most; 0: what suits the memory there is

	Lanes    int    `opt:"lanes"` // queue pairs; 0: as many as suit the machine
	CPULanes int    `opt:"lanes"` // as many more, of lanes on the CPU beside those on a GPU
	Depth    int    `opt:"depth"` // commands in flight on one; 0: as many as suit the controller
	LBA      int    `opt:"lba"`   // block size of a software controller in bytes; 0: 512, or a block device's own
	NSID     uint32 `opt:"nsid"`  // 0: 1

	NoShortcut bool `opt:"shortcut"` // every command goes by the rings of a queue pair

	MemoryMode *controller.MemoryMode `opt:"memory-mode"` // nil: as much as works
	Thread     bool                   `opt:"lane"`        // lanes are single threads of a GPU instead of waves
	GPUError   string                 `opt:"gpu_error"`   // host or ro; empty: host
	Doorbell   engine.DoorbellRoute   `opt:"doorbell"`
	Batch      bool                   `opt:"batch"`

	Share share.Limits `opt:"share_…"` // of one user; a limit that is 0 has its default

	Pool int64  `opt:"vram"` // bytes of device memory for programs; -1: as many as suit the device
	VRAM string `opt:"vram"` // PCI function and BAR that hold the host runtime's device memory; empty: memfds
	VFIO string `opt:"vfio"` // way to the IOMMU of a PCI function; empty: what the machine offers

	Kernel []string // options that the kernel's VFS carries out
}

// Default is the configuration of a mount without options.
func Default() Config { return Config{Pool: -1} }

// StrictAtime says whether every read changes the access time.
func (c *Config) StrictAtime() bool { return slices.Contains(c.Kernel, "strictatime") }

// Check refuses options that exclude one another.
func (c *Config) Check() error {
	if c.NoRecovery && !c.ReadOnly {
		return errors.New("option \"norecovery\" needs \"ro\": a journal that was not replayed must not be written over")
	}
	if c.WriteBack && c.StrictAtime() {
		return errors.New("options \"strictatime\" and \"writeback_cache\" exclude one another: strictatime needs to see each read, and the write-back cache answers reads in the kernel")
	}
	return nil
}

// CheckDevice refuses options that have no effect on the device that is mounted: an NVMe function, or an image or block device behind
// the software controller.
func (c *Config) CheckDevice(function bool) error {
	switch {
	case function && c.LBA != 0:
		return fmt.Errorf("option \"lba=%d\" is for images and block devices: an NVMe drive has the block size that it was formatted with; leave it out", c.LBA)
	case !function && c.VFIO != "":
		return fmt.Errorf("option \"vfio=%s\" is for NVMe functions, by their PCI address: this is an image or a block device; leave it out", c.VFIO)
	}
	return nil
}

// Differs names the options that c asks for and that first, the configuration of a mount that exists, does not have. Options that c
// leaves out are not asked for. The log file, and what each mount of a volume has for itself, such as "nosuid", are left out.
func (c *Config) Differs(first *Config, perMount func(option string) bool) []string {
	var other []string
	want, have := reflect.ValueOf(*c), reflect.ValueOf(*first)
	for i := range want.NumField() {
		field, v := want.Type().Field(i), want.Field(i)
		if field.Name == "Log" || field.Name == "Kernel" || v.IsZero() || field.Name == "Pool" && v.Int() < 0 {
			continue
		}
		if !reflect.DeepEqual(v.Interface(), have.Field(i).Interface()) {
			other = append(other, field.Tag.Get("opt"))
		}
	}
	for _, o := range c.Kernel {
		if !perMount(o) && !slices.Contains(first.Kernel, o) {
			other = append(other, o)
		}
	}
	return slices.Compact(other)
}

// BAR is a base address register of a PCI function.
type BAR struct {
	Function string // PCI address
	Index    int    // 0 to 5
}

func (b BAR) String() string { return fmt.Sprintf("%s/%d", b.Function, b.Index) }
