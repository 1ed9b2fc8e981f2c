package softctl

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/bits"
	"time"

	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Version is what the VS register reports.
type Version uint32

const (
	Version14 Version = 0x00010400
	Version20 Version = 0x00020000
)

// Unlimited as MaxTransfer makes MDTS report no limit.
const Unlimited = -1

// DefaultQueues is how many I/O queue pairs a controller has, unless Options say otherwise.
const DefaultQueues = 32

// Options configures a controller. The zero value is a controller with one namespace over the whole image, 512-byte
// blocks and a volatile write cache.
type Options struct {
	BlockSize   int      // bytes of one LBA: 512, 1024, 2048 or 4096. 0 is 512, or a block device's own
	Namespaces  int      // the image is cut into this many equal parts. 0 is 1
	Images      []string // further images, one namespace each, after those of the first
	MaxTransfer int      // bytes of one command (MDTS): a power of two from 8192. 0 is 1 MiB
	Queues      int      // I/O queue pairs. 0 is DefaultQueues
	Depth       int      // entries of a queue at most (MQES + 1): 2 to 65536. 0 is 1024
	Stride      int      // CAP.DSTRD: doorbells are 4<<Stride bytes apart, 0 to 15

	Latency    time.Duration // a command completes no earlier than this after it was fetched
	OutOfOrder bool          // commands are carried out and completed in an order drawn from Seed
	Seed       int64

	NoWriteCache bool // no volatile write cache: every write is durable when it completes
	ReadOnly     bool // the image is opened for reading; writes answer Namespace is Write Protected

	Serial   string // at most 20 ASCII characters. Empty: made from the image's identity
	Model    string // at most 40
	Firmware string // at most 8
	Version  Version

	HostBuffer      int64 // bytes of the host's memory that the controller would like to have for itself. 0 is none
	HostBufferLeast int64 // the least that is of use to it

	ReadyDelay    time.Duration // from CC.EN to CSTS.RDY
	ShutdownDelay time.Duration // from CC.SHN to CSTS.SHST complete, besides the flush

	// Threads serve the I/O queues, so that Step need not: for lanes that run on a device. 0 is none, and the caller of
	// Step works on its queue.
	Threads int
	// NoIOUring has a block device read and written by calls that wait.
	NoIOUring bool
	// NoLone has every command go by the rings of its queue pair.
	NoLone bool
	// Mover reaches memory that has no host view. Without one such memory cannot be mapped.
	Mover copyengine.Mover
	// Injector decides what goes wrong; SetInjector changes it later.
	Injector Injector
	// Recorder logs what reaches the image.
	Recorder *media.Recorder
	Log      *slog.Logger // nil: discard
}

// withDefaults fills in what is zero and refuses what cannot be.
func (o Options) withDefaults() (Options, error) {
	o.BlockSize = cmp.Or(o.BlockSize, 512)
	o.Namespaces = cmp.Or(o.Namespaces, 1)
	o.MaxTransfer = cmp.Or(o.MaxTransfer, 1<<20)
	o.Queues = cmp.Or(o.Queues, DefaultQueues)
	o.Depth = cmp.Or(o.Depth, 1024)
	o.Model = cmp.Or(o.Model, "LaneFS software controller")
	o.Firmware = cmp.Or(o.Firmware, "1.0")
	o.Version = cmp.Or(o.Version, Version14)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.BlockSize < 512 || o.BlockSize > 4096 || bits.OnesCount(uint(o.BlockSize)) != 1:
		return o, fmt.Errorf("block size %d: want 512, 1024, 2048 or 4096", o.BlockSize)
	case o.Namespaces < 1 || o.Namespaces > 1024:
		return o, fmt.Errorf("%d namespaces: want 1 to 1024", o.Namespaces)
	case o.MaxTransfer != Unlimited && (o.MaxTransfer < 8192 || bits.OnesCount(uint(o.MaxTransfer)) != 1):
		return o, fmt.Errorf("maximum transfer %d: want a power of two from 8192, or Unlimited", o.MaxTransfer)
	case o.Queues < 1 || o.Queues > 65534:
		return o, fmt.Errorf("%d I/O queues: want 1 to 65534", o.Queues)
	case o.Depth < 2 || o.Depth > 65536:
		return o, fmt.Errorf("queue depth %d: want 2 to 65536", o.Depth)
	case o.HostBuffer < 0 || o.HostBuffer%4096 != 0 || o.HostBufferLeast < 0 || o.HostBufferLeast%4096 != 0 || o.HostBufferLeast > o.HostBuffer:
		return o, fmt.Errorf("host memory buffer of %d bytes, %d at least: want multiples of 4096, and no more at least than at best", o.HostBuffer, o.HostBufferLeast)
	case o.Threads < 0:
		return o, fmt.Errorf("%d threads: want 0 or more", o.Threads)
	case o.Stride < 0 || o.Stride > 15:
		return o, fmt.Errorf("doorbell stride %d: want 0 to 15", o.Stride)
	case o.Latency < 0 || o.ReadyDelay < 0 || o.ShutdownDelay < 0:
		return o, fmt.Errorf("negative latency or delay")
	case o.ReadyDelay > capTimeout || o.ShutdownDelay > time.Minute:
		return o, fmt.Errorf("ready delay %v, shutdown delay %v: want at most %v and %v", o.ReadyDelay, o.ShutdownDelay,
			capTimeout, time.Minute)
	case o.Version != Version14 && o.Version != Version20:
		return o, fmt.Errorf("version %#x: want Version14 or Version20", uint32(o.Version))
	case o.Recorder != nil && len(o.Images) > 0:
		return o, fmt.Errorf("a recorder follows one image; further images are given: %q", o.Images)
	}
	for _, s := range []struct {
		what, v string
		max     int
	}{{"serial number", o.Serial, 20}, {"model", o.Model, 40}, {"firmware revision", o.Firmware, 8}} {
		if len(s.v) > s.max {
			return o, fmt.Errorf("%s %q: want at most %d characters", s.what, s.v, s.max)
		}
		for _, r := range s.v {
			if r < 0x20 || r > 0x7e {
				return o, fmt.Errorf("%s %q: want printable ASCII", s.what, s.v)
			}
		}
	}
	return o, nil
}

// mdts is the MDTS field: a power of two in units of the smallest memory page, 0 for no limit.
func (o Options) mdts() uint8 {
	if o.MaxTransfer == Unlimited {
		return 0
	}
	return uint8(bits.TrailingZeros(uint(o.MaxTransfer) / 4096))
}
