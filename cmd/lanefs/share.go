package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

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
	if h.server != nil {
		r.Users, r.Limits, r.Rings = h.server.Usage(), h.server.Limits(), h.server.Moved()
	}
	return r, nil
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
	if h.mover != nil {
		errs = append(errs, h.mover.Close())
	}
	if h.host != nil {
		errs = append(errs, h.host.Close())
	}
	return errors.Join(errs...)
}
