package mountopt

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// MaxLanes is how many lanes a mount can have, and so how many I/O queue pairs.
const MaxLanes = 1024

// maxInFlight is how many commands a queue of nvmeq's largest size takes: one fewer than it has entries.
const maxInFlight = 16384 - 1

// table are all options, by layer.
var table = slices.Concat(volume, fuse, kernel, lanes, shares, daemon, tuning, fstab)

var byName = func() map[string]int {
	m := map[string]int{}
	for i, o := range table {
		if o.Kind != Prefix {
			m[o.Name] = i
		}
	}
	return m
}()

var volume = []Option{
	{Name: "ro", Help: "read-only", set: func(c *Config, _ value) error { c.ReadOnly = true; return nil }},
	{Name: "rw", Help: "read and write (the default)", set: func(c *Config, _ value) error { c.ReadOnly = false; return nil }},
	{Name: "norecovery", Help: "with ro: show the volume without replaying its journal", set: setNoRecovery},
	{Name: "noload", Help: "another name for norecovery", set: setNoRecovery},
	{Name: "commit", Kind: Number, Arg: "SECONDS", High: 300, Unit: "seconds", Default: "5", Help: "how long a change may wait for its commit",
		More: "0 is the default, as with the kernel's ext4.",
		set:  func(c *Config, v value) error { c.Commit = time.Duration(v.n) * time.Second; return nil }},
	{Name: "discard", Help: "discard freed blocks", set: func(c *Config, _ value) error { c.Discard = true; return nil }},
	{Name: "nodiscard", Help: "do not discard freed blocks (the default)", set: func(c *Config, _ value) error { c.Discard = false; return nil }},
	{Name: "errors", Kind: Choice, Values: []string{"remount-ro", "continue", "panic"}, Default: "remount-ro",
		Help: "what to do when corruption is found: refuse changes, go on, or end the daemon",
		More: "Without the option the volume's own setting (tune2fs -e) decides, but its continue counts as remount-ro.",
		set: func(c *Config, v value) error {
			c.Errors = map[string]ext4.ErrorMode{"remount-ro": ext4.ErrorsReadOnly, "continue": ext4.ErrorsContinue, "panic": ext4.ErrorsPanic}[v.text]
			return nil
		}},
	{Name: "cache", Kind: Size, Low: 4 << 10, Default: "256M, less with a small pinned=", Help: "metadata kept in memory",
		More: "It must fit into pinned= together with the journal and file data.",
		set:  func(c *Config, v value) error { c.Cache = v.n; return nil }},
	{Name: "acl", Help: "access control lists: always on", set: always},
	{Name: "user_xattr", Help: "extended attributes of users: always on", set: always},
	{Name: "data", Kind: Choice, Values: []string{"ordered"}, want: "ordered, the only mode", Help: "how file data is journaled: always ordered", set: always},
}

var fuse = []Option{
	{Name: "allow_other", Layer: FUSE, Help: "let other users use the mount; root's mounts always do",
		More: "For users other than root it needs user_allow_other in /etc/fuse.conf.",
		set:  func(c *Config, _ value) error { c.AllowOther = true; return nil }},
	{Name: "default_permissions", Layer: FUSE, Help: "the kernel checks permissions: always on", set: always},
	{Name: "writeback_cache", Layer: FUSE, Help: "let the kernel collect small writes: for programs that write a few bytes at a time",
		set: func(c *Config, _ value) error { c.WriteBack = true; return nil }},
	{Name: "io_uring", Kind: Choice, Values: ioURings(), Default: "auto", Layer: FUSE, Help: "take the kernel's requests by io_uring, or by /dev/fuse",
		More: "on falls back to /dev/fuse where the kernel has no FUSE over io_uring (Linux 6.14, the fuse module's parameter enable_uring); lanefs stat says why. " +
			"auto does the same, and is content with either.",
		set: func(c *Config, v value) error { c.IOUring = fs.IOUring(slices.Index(ioURings(), v.text)); return nil }},
	{Name: "sched_idle", Kind: Choice, Values: []string{"auto", "off"}, Default: "auto", Layer: FUSE,
		Help: "have busy threads that serve requests run with the policy SCHED_IDLE, so that programs are not woken on other CPUs",
		More: "auto does so with an image or a PCI function and lanes on the CPU, where the daemon may leave that policy again (CAP_SYS_NICE), " +
			"and pauses while other programs keep the threads from running; lanefs stat says how often.",
		set: func(c *Config, v value) error { c.NoSchedIdle = v.text == "off"; return nil }},
	{Name: "bsddf", Layer: FUSE, Help: "the size that df shows leaves out the file system's own metadata (the default)",
		set: func(c *Config, _ value) error { c.MinixDF = false; return nil }},
	{Name: "minixdf", Layer: FUSE, Help: "the size that df shows includes the file system's own metadata",
		set: func(c *Config, _ value) error { c.MinixDF = true; return nil }},
}

var lanes = []Option{
	{Name: "gpu", Kind: Text, Values: []string{"auto", "host", "hip", "cuda"}, Arg: "auto|host|hip|cuda[:N|UUID|ADDR,...]", Default: "auto", Layer: Lanes, Help: "what runs the lanes", want: wantGPU,
		More: "auto takes a GPU that works, AMD's before NVIDIA's, else the CPU, and logs why. If a GPU is named and cannot be used, the mount fails. cuda:0,1 (or cuda:0+1) takes two, " +
			"by the driver's ordinals: each has lanes and a pool (vram= is the size of each), and a program gets the memory of its own GPU. " +
			"A device is also named by its UUID, or a beginning of it (cuda:GPU-1a2b, cuda:MIG-...), or its PCI address (hip:c1:00.0): ordinals depend on CUDA_VISIBLE_DEVICES, " +
			"HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, these do not. lanefs doctor lists them. A MIG instance is a mount's only device.",
		set: func(c *Config, v value) (err error) { c.GPU, c.GPUs, err = parseGPU(v.text); return err }},
	{Name: "lanes", Kind: Text, Arg: "N|gpu:N+cpu:M", Default: "one per CPU, at least 4, of a block device on the CPU at least 32, on a GPU at most 16; for an image on GPUs up to 16 for each of them on the CPU more, for a PCI function up to 4", Layer: Lanes, Help: "queue pairs, one for each lane",
		want: wantLanes,
		More: "If the controller has fewer queue pairs, or the GPU holds fewer kernels, there are fewer lanes; the log says so. gpu:16+cpu:2 has two lanes on the CPU and sixteen on the GPU. " +
			"The CPU's lanes take requests while the GPU answers late because another program uses it, and small requests for ten seconds more; requests to or from a program's " +
			"host memory; and, with an image or block device, requests in pieces of less than 256 KiB, and those to or from device memory; without lanes= all of its requests. " +
			"Without a GPU all lanes are on the CPU anyway, and cpu:M adds none. lanefs stat counts how often each was chosen and why.",
		set: func(c *Config, v value) (err error) { c.Lanes, c.CPULanes, err = parseLanes(v.text); return err }},
	{Name: "depth", Kind: Number, Low: 1, High: maxInFlight, Default: "127", Layer: Lanes, Help: "commands in flight on each queue pair",
		More: "If the controller's queues are shorter, they hold fewer; the log says so.",
		set:  func(c *Config, v value) error { c.Depth = int(v.n); return nil }},
	{Name: "lane", Kind: Choice, Values: []string{"wave", "thread"}, Default: "wave", Layer: Lanes, want: "thread or wave",
		Help: "on a GPU: a lane is a whole wave that posts and polls together, or one thread",
		More: "On a CPU it makes no difference.",
		set:  func(c *Config, v value) error { c.Thread = v.text == "thread"; return nil }},
	{Name: "shortcut", Kind: Choice, Values: []string{"on", "off"}, Default: "on", Layer: Lanes,
		Help: "the software controller carries out a single short command without the rings of its queue pair",
		More: "It is for reads and writes of one run of memory, of an image up to 64 KiB, and of an image in RAM for flushes, where the thread that asks would be host, lane and controller in turn. " +
			"off has every command go through the lane's kernel and the rings, as those of a drive do: some 2 microseconds more each. lanefs stat counts both; only the rings have doorbells.",
		set: func(c *Config, v value) error { c.NoShortcut = v.text == "off"; return nil }},
	{Name: "batch", Layer: Lanes, Help: "launch a kernel for each batch of commands, instead of kernels that stay resident",
		set: func(c *Config, _ value) error { c.Batch = true; return nil }},
	{Name: "gpu_error", Kind: Choice, Values: []string{"host", "ro"}, Default: "host", Layer: Lanes,
		Help: "when the GPU fails: lanes continue on the CPU (host), or do so read-only (ro)",
		set:  func(c *Config, v value) error { c.GPUError = v.text; return nil }},
	{Name: "doorbell", Kind: Choice, Values: doorbells(), Default: "auto", Layer: Lanes, Help: "how lanes ring the controller's doorbells",
		More: "direct: in the BAR, imported from a descriptor. iomem: in the BAR, registered as I/O memory. bridge: in memory, and the CPU forwards it. " +
			"auto takes the bridge if the GPU cannot reach the BAR by either, or if its stores there do not arrive.",
		set: func(c *Config, v value) error {
			c.Doorbell = engine.DoorbellRoute(slices.Index(doorbells(), v.text))
			return nil
		}},
	{Name: "memory-mode", Kind: Choice, Values: memoryModes(), Arg: "auto|0..15", Default: "auto", Layer: Lanes, want: "auto or a number from 0 to 15",
		Help: "what is in device memory, a sum of: 1 submission queues, 2 completion queues, 4 the bridge's doorbells, 8 data",
		More: "auto takes as much as real I/O with verified bytes shows to work: with a PCI function's memory (vram=ADDR) all, with a GPU on a drive the " +
			"submission queues (1), else 0. lanefs stat says what was refused and why.",
		set: setMemoryMode},
	{Name: "lba", Kind: Choice, Values: []string{"512", "1024", "2048", "4096"}, Default: "512, or a block device's own", Layer: Lanes,
		Help: "block size of the software controller in bytes, no less than a block device's own",
		set:  func(c *Config, v value) error { n, _ := number(v.text); c.LBA = int(n); return nil }},
	{Name: "nsid", Kind: Number, Low: 1, High: math.MaxInt32, Default: "1", Layer: Lanes, Help: "namespace of the controller",
		set: func(c *Config, v value) error { c.NSID = uint32(v.n); return nil }},
	{Name: "pinned", Kind: Size, Low: 1 << 20, Default: "1G, or half of the memory there is where that is less", Layer: Lanes, Help: "the most memory that is pinned for the controller, including cache and journal",
		More: "A volume with blocks of 4096 bytes needs 16M.",
		set:  func(c *Config, v value) error { c.Pinned = v.n; return nil }},
	{Name: "vfio", Kind: Choice, Values: []string{string(vfio.IOMMUFD), string(vfio.Type1)}, Default: "what the machine offers", Layer: Lanes,
		Help: "for a PCI function: which interface to the IOMMU",
		set:  func(c *Config, v value) error { c.VFIO = v.text; return nil }},
}

var shares = []Option{
	{Name: "vram", Kind: Text, Arg: "SIZE|ADDR[/BAR]", Default: "a quarter of the device's", Layer: Share,
		Help: "size of the device memory that programs can map files into; or the PCI function whose BAR is the device memory",
		More: "0 gives none. ADDR needs gpu=host and a PCI function as the device; its BAR is 2 unless given.",
		set:  setVRAM},
	limit("share_connections", 1024, "256", "connections", func(c *Config) *int { return &c.Share.Connections }),
	limit("share_descriptors", 1<<20, "an eighth of the daemon's, 4096 at most", "descriptors of the daemon", func(c *Config) *int { return &c.Share.Descriptors }),
	limit("share_rings", 1<<20, "256", "rings", func(c *Config) *int { return &c.Share.Rings }),
	limit("share_handles", 1<<30, "65536", "files, mappings and registered memories", func(c *Config) *int { return &c.Share.Handles }),
	limitBytes("share_registered", "a quarter of the machine's, or as much as the pool has", "bytes of memory that they register", func(c *Config) *int64 { return &c.Share.Registered }),
	limitBytes("share_shared", "256M", "bytes of rings and notice boards", func(c *Config) *int64 { return &c.Share.Shared }),
	limitBytes("share_held", "half of it", "bytes of the pool that are mapped or private", func(c *Config) *int64 { return &c.Share.Held }),
}

var daemon = []Option{
	{Name: "log", Kind: Text, Arg: "FILE", Default: "beside the control socket", Layer: Daemon, Help: "where the daemon logs",
		set: func(c *Config, v value) error { c.Log = v.text; return nil }},
	{Name: "metrics", Kind: Text, Arg: "HOST:PORT|SOCKET", Layer: Daemon, want: wantMetrics, Help: "where Prometheus can scrape the mount's counters, at /metrics",
		More: "An address such as localhost:9123, or the absolute path of a unix socket, which the daemon makes with mode 0660. Whoever can connect can read the counters.",
		set: func(c *Config, v value) error {
			if !strings.HasPrefix(v.text, "/") && !strings.Contains(v.text, ":") {
				return errors.New("want " + wantMetrics)
			}
			c.Metrics = v.text
			return nil
		}},
}

const wantMetrics = "HOST:PORT or the absolute path of a socket"

// ioURings are in the order of fs.IOUring.
func ioURings() []string { return []string{"auto", "off", "on"} }

// always is set for what is so in any case: lines of /etc/fstab that were ext4's have it.
func always(*Config, value) error { return nil }

func setNoRecovery(c *Config, _ value) error { c.NoRecovery = true; return nil }

// limit is an option for what the programs of one user may take of the daemon.
func limit(name string, high int64, byDefault, what string, field func(*Config) *int) Option {
	return Option{Name: name, Kind: Number, Low: 1, High: high, Default: byDefault, Layer: Share, Help: "at most for the programs of one user: " + what,
		set: func(c *Config, v value) error { *field(c) = int(v.n); return nil }}
}

func limitBytes(name, byDefault, what string, field func(*Config) *int64) Option {
	return Option{Name: name, Kind: Size, Low: 1, Default: byDefault, Layer: Share, Help: "at most for the programs of one user: " + what,
		set: func(c *Config, v value) error { *field(c) = v.n; return nil }}
}

func doorbells() (names []string) {
	for r := engine.DoorbellAuto; r <= engine.DoorbellBridge; r++ {
		names = append(names, r.String())
	}
	return names
}

func memoryModes() []string {
	return []string{"auto", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"}
}

func setMemoryMode(c *Config, v value) error {
	c.MemoryMode = nil
	if n, ok := number(v.text); ok {
		m := controller.MemoryMode(n)
		c.MemoryMode = &m
	}
	return nil
}

// setVRAM takes a size, or a PCI address, which has a colon and a dot.
func setVRAM(c *Config, v value) error {
	if strings.ContainsAny(v.text, ":.") {
		c.VRAM = v.text
		_, err := ParseBAR(v.text)
		return err
	}
	pool, err := (&Option{Kind: Size}).read(v.text)
	c.Pool = pool.n
	return err
}
