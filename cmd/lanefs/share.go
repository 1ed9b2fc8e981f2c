package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/host"
)

// sharing is what serves files as device memory. It stands between the mount and the stack: it is closed when the mount is
// gone, and before the volume. nil is a mount without it.
type sharing struct {
	pools  []*gpuPool // one for each GPU, in the order of --gpu
	server *share.Server
	host   *host.Runtime // imports programs' memfds; nil where the lanes' runtime does
	socket string
	public bool
	limits share.Limits
	asked  bool // on the command line: the mount fails without it
}

// gpuPool is the pool of one GPU.
type gpuPool struct {
	*residency.Pool
	mover  *copyengine.Engine // nil where the controller has one, or the CPU copies
	copier *copier            // to and from the pool's stage; nil where the controller is software, or the CPU copies
	failed func() bool        // no call of the GPU's runtime returns for sure
}

// poolShare is the part of a device's memory that the pool takes at most unless told otherwise.
const poolShare = 4

// openPool makes the pools that are asked for. Without a size on the command line a runtime that cannot share is no error.
func openPool(s *stack, cfg *mountConfig, log *slog.Logger) (_ *sharing, err error) {
	if cfg.Pool == 0 {
		return nil, nil
	}
	h := &sharing{public: os.Geteuid() == 0 || cfg.AllowOther, limits: cfg.Share, asked: cfg.Pool > 0}
	if !slices.Contains(s.rt.Facts().Imports, gpu.ExportMemFD) {
		if h.host, err = host.Open(host.Options{}); err != nil {
			return nil, err
		}
	}
	err = h.open(s, s.rt, s.copy, cfg.Pool)
	for i, rt := range s.more {
		var copies *copyengine.Engine
		if s.copies != nil {
			copies = s.copies[i]
		}
		if err == nil {
			err = h.open(s, rt, copies, cfg.Pool)
		}
	}
	if err == nil {
		h.socket = shareSocket(cfg.Dir, h.public)
		if h.public {
			err = makeShareDir(filepath.Dir(h.socket))
		}
	}
	if err == nil {
		sweep(filepath.Dir(h.socket), log)
		for _, p := range h.pools {
			if why := p.Unreached(); why != nil {
				log.Info("files reach device memory through a stage: the drive does not reach it", "gpu", p.Runtime().Facts().PCI, "why", oneLine(why))
			}
		}
	}
	if err != nil {
		err = errors.Join(err, h.close())
		if h.asked {
			return nil, fmt.Errorf("option \"vram=%d\": %w", cfg.Pool, err)
		}
		log.Info("no files as device memory", "why", oneLine(err))
		return nil, nil
	}
	return h, nil
}

// open makes the pool of one GPU: size bytes, or if that is negative a part of what the GPU has. copies is the controller's copy engine, if it
// has one.
func (h *sharing) open(s *stack, rt gpu.Runtime, copies *copyengine.Engine, size int64) (err error) {
	facts := rt.Facts()
	if size < 0 {
		size = max(facts.Memory/poolShare, facts.Granularity)
	}
	p := &gpuPool{}
	c := residency.Config{Runtime: rt, Mapper: s.dev, Size: size, Failed: s.runtimeFailed}
	p.failed = s.runtimeFailed
	if h.host != nil {
		c.Host = h.host
	}
	if copies == nil && !facts.CallerDriven { // a drive, which may not reach the GPU's memory
		if p.mover, err = copyengine.New(rt); err != nil {
			return err
		}
		p.copier = &copier{rt: rt}
		p.mover.OnStuck(s.leaveGPU)
		p.copier.streams.OnStuck(s.leaveGPU)
		c.Copier, c.Prove = p.copier, s.proveArrives
		copies = p.mover
	}
	if copies != nil {
		c.Mover = copies
	}
	if p.Pool, err = residency.New(c); err != nil {
		return errors.Join(err, p.close())
	}
	h.pools = append(h.pools, p)
	return nil
}

func (p *gpuPool) close() error {
	var errs []error
	if p.Pool != nil {
		errs = append(errs, p.Pool.Close())
	}
	if p.failed != nil && p.failed() {
		return errors.Join(errs...) // streams end with the process
	}
	if p.copier != nil {
		errs = append(errs, p.copier.streams.Close())
	}
	if p.mover != nil {
		errs = append(errs, p.mover.Close())
	}
	return errors.Join(errs...)
}

// copier is the copy engines of the lanes' runtime, for the pool's stage.
type copier struct {
	rt      gpu.Runtime
	streams copyengine.Pool
}

func (c *copier) Copy(dst, src gpu.Addr, n int64) error { return c.streams.Copy(c.rt, dst, src, n) }

// Stuck is copyengine.ErrStuck once copies do not end, else nil.
func (c *copier) Stuck() error { return c.streams.Stuck() }

// leaveGPU moves the lanes of all units.
func (s *stack) leaveGPU(why error) {
	for _, u := range s.all() {
		if u.nvme != nil {
			u.nvme.LeaveRuntime(why)
		}
	}
}

// proveArrives shows that what each drive reads into m arrives there.
func (s *stack) proveArrives(m *residency.Memory) error {
	for _, u := range s.all() {
		if err := u.proveArrives(m); err != nil {
			return err
		}
	}
	return nil
}

// proveArrives reads the first block of the device into m, after m got other bytes.
func (u *unit) proveArrives(m *residency.Memory) error {
	n := int(u.dev.Info().BlockSize)
	buf, err := u.dev.Alloc(n)
	if err != nil {
		return err
	}
	defer buf.Release()
	if err := u.dev.Do(&blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{buf.Slice(0, n)}}); err != nil {
		return err
	}
	want, got := bytes.Clone(buf.Bytes()[:n]), make([]byte, n)
	for i := range got {
		got[i] = ^want[i]
	}
	if err := m.Put(0, got); err != nil {
		return err
	}
	if err := u.dev.Do(&blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{m.Slice(0, n)}}); err != nil {
		return err
	}
	if err := m.Get(0, got); err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return errors.New("commands succeed, and yet the GPU does not see the bytes in its memory: the drive's DMA leads elsewhere")
	}
	return nil
}

// shareSocket is where programs connect to the mount at dir. The holder of the mount point's lock may replace or remove it.
func shareSocket(dir string, public bool) string {
	all := runDirs(os.Geteuid())
	run := all[0]
	if public {
		// The runtime directory is its user's only, and may be in one that is.
		run = all[len(all)-1] + "-share"
	}
	return filepath.Join(run, share.SocketName(runName(dir)))
}

// makeShareDir makes the socket's directory where it is not the runtime directory, which is there.
func makeShareDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return fmt.Errorf("directory of the share's socket: %w", err)
	}
	return checkOwnDir(dir, 0o022)
}

// sweep removes what killed daemons of other mounts have left, and logs what they were: daemons are also killed where a PID namespace
// ends. Its errors do not keep the mount from coming up.
func sweep(dir string, log *slog.Logger) {
	left := map[string]*served{}
	removed, err := share.Sweep(dir, func(base string) (func(), bool) {
		release, s, free := claimDead(base)
		left[share.SocketName(base)] = s
		return release, free
	})
	if err != nil {
		log.Warn("sockets that killed daemons left cannot be removed", "dir", dir, "error", oneLine(err))
	}
	for _, name := range removed {
		if s := left[filepath.Base(name)]; s != nil {
			log.Info("removed the socket of a daemon that was killed", "socket", name, "pid", s.PID, "device", s.Device, "dir", s.Dir)
		} else {
			log.Info("removed the socket of a daemon that was killed", "socket", name)
		}
	}
}

// serve begins to answer programs.
func (h *sharing) serve(srv *fs.Server, log *slog.Logger) (err error) {
	if h == nil {
		return nil
	}
	h.server, err = share.Serve(share.Config{Socket: h.socket, Public: h.public, Mount: srv, Pools: h.residency(), Limits: h.limits, Log: log})
	if err != nil && !h.asked {
		log.Warn("no files as device memory", "why", oneLine(err))
		return nil
	}
	return err
}

func (h *sharing) changed() func(ino uint32, off, end int64) {
	if h == nil {
		return nil
	}
	return func(ino uint32, off, end int64) {
		for _, p := range h.pools {
			p.Changed(ino, off, end)
		}
	}
}

func (h *sharing) residency() (all []*residency.Pool) {
	for _, p := range h.pools {
		all = append(all, p.Pool)
	}
	return all
}

// poolReport is the pool of one of several GPUs.
type poolReport struct {
	GPU    string `json:"gpu"` // PCI address
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Used   int64  `json:"used"`
	Loads  int64  `json:"loads"`
	Loaded int64  `json:"loaded"`
}

// poolReports are those of all GPUs, nil if there is one.
func (h *sharing) poolReports() (all []poolReport) {
	if len(h.pools) < 2 {
		return nil
	}
	for _, p := range h.pools {
		f, s := p.Runtime().Facts(), p.Stats()
		all = append(all, poolReport{f.PCI, f.Name, s.Size, s.Used, s.Loads, s.Loaded})
	}
	return all
}

// sum is all pools as one. What is the first GPU's alone, for instance why the drive does not reach it, is the same for the others mostly.
func (h *sharing) sum() residency.Stats {
	all := h.pools[0].Stats()
	for _, p := range h.pools[1:] {
		s := p.Stats()
		all.Size, all.Used, all.Loads, all.Loaded = all.Size+s.Size, all.Used+s.Used, all.Loads+s.Loads, all.Loaded+s.Loaded
		all.Shared, all.Evicted, all.Staged = all.Shared+s.Shared, all.Evicted+s.Evicted, all.Staged+s.Staged
		all.Residents = append(all.Residents, s.Residents...)
		all.Unreached = cmp.Or(all.Unreached, s.Unreached)
	}
	all.Unreached = strings.ReplaceAll(all.Unreached, "\n", "; ")
	return all
}

func (h *sharing) path() string {
	if h == nil {
		return ""
	}
	return h.socket
}

// vramReport is what `lanefs vram ls --json` prints.
type vramReport struct {
	residency.Stats
	Pools  []poolReport  `json:"pools,omitempty"` // of several GPUs, one by one
	Rings  share.Moved   `json:"rings"`
	Users  []share.Usage `json:"users"`
	Limits share.Limits  `json:"limits"` // of a user who is neither root nor the mount's
}

func (h *sharing) stats() (*vramReport, error) {
	if h == nil {
		return nil, errors.New("the mount gives out no device memory: mount it with -o vram=SIZE")
	}
	r := &vramReport{Stats: h.sum(), Pools: h.poolReports(), Users: []share.Usage{}}
	if h.server != nil {
		r.Users, r.Limits, r.Rings = h.server.Usage(), h.server.Limits(), h.server.Moved()
	}
	return r, nil
}

// shareReport is what stat says of the share: which way the bytes of programs go.
type shareReport struct {
	Unreached string       `json:"unreached,omitempty"` // why the drive does not reach device memory
	Staged    int64        `json:"staged"`              // bytes that went through the pool's stage therefore
	Rings     share.Moved  `json:"rings"`
	Pools     []poolReport `json:"pools,omitempty"` // of several GPUs
}

// left is how many bytes of memory the pools never give back.
func (h *sharing) left() (n int64) {
	if h == nil {
		return 0
	}
	for _, p := range h.pools {
		n += p.Left()
		if p.mover != nil {
			n += p.mover.Left()
		}
	}
	return n
}

// report is nil without a share.
func (h *sharing) report() *shareReport {
	if h == nil || h.server == nil {
		return nil
	}
	sum := h.sum()
	return &shareReport{Unreached: sum.Unreached, Staged: sum.Staged, Rings: h.server.Moved(), Pools: h.poolReports()}
}

// print prints how many requests of rings went which way.
func (r *shareReport) print(out io.Writer) {
	if r == nil {
		return
	}
	for _, p := range r.Pools {
		fmt.Fprintf(out, "pool        %s %s: %s of %s in use, %s read\n", p.GPU, p.Name, units.Bytes(p.Used), units.Bytes(p.Size), units.Bytes(p.Loaded))
	}
	d, s, c := r.Rings.Device, r.Rings.Stage, r.Rings.Copied
	fmt.Fprintf(out, "programs    %d requests straight to their memory or from it (%s), %d through their stages (%s), %d through the daemon's (%s)\n",
		d.Requests, units.Bytes(d.Bytes), s.Requests, units.Bytes(s.Bytes), c.Requests, units.Bytes(c.Bytes))
	if r.Unreached != "" {
		fmt.Fprintf(out, "staged      %s of device memory, which the drive does not reach: %s\n", units.Bytes(r.Staged), r.Unreached)
	}
}

func (h *sharing) close() error {
	if h == nil {
		return nil
	}
	var errs []error
	if h.server != nil {
		errs = append(errs, h.server.Close())
	}
	for _, p := range h.pools {
		errs = append(errs, p.close())
	}
	if h.host != nil {
		errs = append(errs, h.host.Close())
	}
	return errors.Join(errs...)
}
