package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

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
	pool   *residency.Pool
	server *share.Server
	mover  *copyengine.Engine // nil where the controller has one, or the CPU copies
	copier *copier            // to and from the pool's stage; nil where the controller is software, or the CPU copies
	host   *host.Runtime      // imports programs' memfds; nil where the lanes' runtime does
	socket string
	public bool
	limits share.Limits
	asked  bool // on the command line: the mount fails without it
}

// poolShare is the part of a device's memory that the pool takes at most unless told otherwise.
const poolShare = 4

// openPool makes the pool that is asked for. Without a size on the command line a runtime that cannot share is no error.
func openPool(s *stack, cfg *mountConfig, log *slog.Logger) (_ *sharing, err error) {
	if cfg.Pool == 0 {
		return nil, nil
	}
	size := cfg.Pool
	facts := s.rt.Facts()
	if size < 0 {
		size = max(facts.Memory/poolShare, facts.Granularity)
	}
	h := &sharing{public: os.Geteuid() == 0 || cfg.AllowOther, limits: cfg.Share, asked: cfg.Pool > 0}
	mover := s.copy
	if mover == nil && !facts.CallerDriven {
		if h.mover, err = copyengine.New(s.rt); err != nil {
			return nil, err
		}
		mover = h.mover
	}
	c := residency.Config{Runtime: s.rt, Mapper: s.dev, Size: size}
	if mover != nil {
		c.Mover = mover
	}
	if h.mover != nil { // a drive, which may not reach the GPU's memory
		h.copier = &copier{rt: s.rt}
		c.Copier, c.Prove = h.copier, s.proveArrives
	}
	if !slices.Contains(facts.Imports, gpu.ExportMemFD) {
		if h.host, err = host.Open(host.Options{}); err != nil {
			return nil, errors.Join(err, h.close())
		}
		c.Host = h.host
	}
	if h.pool, err = residency.New(c); err == nil {
		h.socket = shareSocket(cfg.Dir, h.public)
		if h.public {
			err = makeShareDir(filepath.Dir(h.socket))
		}
	}
	if err == nil {
		sweep(filepath.Dir(h.socket), log)
		if why := h.pool.Unreached(); why != nil {
			log.Info("files reach device memory through a stage: the drive does not reach it", "why", oneLine(why))
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

// copier is the copy engines of the lanes' runtime, for the pool's stage.
type copier struct {
	rt      gpu.Runtime
	streams copyengine.Pool
}

func (c *copier) Copy(dst, src gpu.Addr, n int64) error { return c.streams.Copy(c.rt, dst, src, n) }

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
	h.server, err = share.Serve(share.Config{Socket: h.socket, Public: h.public, Mount: srv, Pool: h.pool, Limits: h.limits, Log: log})
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
	return h.pool.Changed
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
	Rings  share.Moved   `json:"rings"`
	Users  []share.Usage `json:"users"`
	Limits share.Limits  `json:"limits"` // of a user who is neither root nor the mount's
}

func (h *sharing) stats() (*vramReport, error) {
	if h == nil {
		return nil, errors.New("the mount gives out no device memory: mount it with -o vram=SIZE")
	}
	r := &vramReport{Stats: h.pool.Stats(), Users: []share.Usage{}}
	if why := h.pool.Unreached(); why != nil {
		r.Unreached = oneLine(why)
	}
	if h.server != nil {
		r.Users, r.Limits, r.Rings = h.server.Usage(), h.server.Limits(), h.server.Moved()
	}
	return r, nil
}

// shareReport is what stat says of the share: which way the bytes of programs go.
type shareReport struct {
	Unreached string      `json:"unreached,omitempty"` // why the drive does not reach device memory
	Staged    int64       `json:"staged"`              // bytes that went through the pool's stage therefore
	Rings     share.Moved `json:"rings"`
}

// report is nil without a share.
func (h *sharing) report() *shareReport {
	if h == nil || h.server == nil {
		return nil
	}
	r := &shareReport{Staged: h.pool.Stats().Staged, Rings: h.server.Moved()}
	if why := h.pool.Unreached(); why != nil {
		r.Unreached = oneLine(why)
	}
	return r
}

// print prints how many requests of rings went which way.
func (r *shareReport) print(out io.Writer) {
	if r == nil {
		return
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
	if h.pool != nil {
		errs = append(errs, h.pool.Close())
	}
	if h.copier != nil {
		errs = append(errs, h.copier.streams.Close())
	}
	if h.mover != nil {
		errs = append(errs, h.mover.Close())
	}
	if h.host != nil {
		errs = append(errs, h.host.Close())
	}
	return errors.Join(errs...)
}
