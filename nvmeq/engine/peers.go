package engine

import (
	"errors"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/align"
)

// Lanes on several GPUs. Those of a further GPU are an engine of their own on the same controller (a peer), with memory and kernels of that
// GPU. They carry out what goes to that GPU's memory or comes from it; all else is the first GPU's. So traffic of one GPU's programs waits
// for no other GPU.
//
// When any of the GPUs fails all lanes move to the CPU: the controller knows that a runtime has failed, and not which of them is well.

// addPeers makes the lanes on further GPUs.
func (e *Engine) addPeers(cfg Config) error {
	cfg.CPULanes = 0
	for _, rt := range cfg.More {
		p, err := newEngine(e.c, cfg, rt)
		if err != nil {
			return errors.Join(err, e.Close())
		}
		pairs{e}.Hold() // a reset may drive the first GPU's lanes already
		e.peers = append(e.peers, p)
		pairs{e}.Release()
		e.c.AlsoRuns(rt)
	}
	return nil
}

// owner is the engine of the GPU whose memory the data is in. Any lane can carry out any command.
func (e *Engine) owner(cmds []Command) *Engine {
	if len(e.peers) == 0 {
		return e
	}
	c := longest(cmds)
	if c.Len == 0 {
		return e
	}
	if of := e.c.DeviceAt(c.Data); of != "" {
		for _, p := range e.peers {
			if p.rt.Facts().PCI == of {
				return p
			}
		}
	}
	return e
}

// doBeside is Do on a lane that is not of the first GPU, counted from those.
func (e *Engine) doBeside(lane int, cmds []Command) error {
	if n := e.CPULanes(); lane < n {
		return e.cpu.Do(lane, cmds)
	} else {
		lane -= n
	}
	for _, p := range e.peers {
		if lane < len(p.lanes) {
			return p.doHere(lane, cmds)
		}
		lane -= len(p.lanes)
	}
	return e.doHere(lane, cmds)
}

func (e *Engine) peerLanes() (n int) {
	for _, p := range e.peers {
		n += len(p.lanes)
	}
	return n
}

// openPeerDoorbells is openDoorbells of a further GPU: it registers the BAR for itself, or goes over a bridge of its own.
func (w *resources) openPeerDoorbells(e *Engine, n int) error {
	c, rt := e.c, e.runtime()
	kind := c.Placement().Doorbell
	if !kind.Device() && e.cfg.Doorbell != DoorbellBridge {
		err := c.Quiesced(func() (err error) { w.bar, err = c.RegisterBAR(rt); return err })
		if err == nil {
			w.route, w.ownBAR = DoorbellBAR, true
			return nil
		}
		e.noBAR = err
	}
	w.route = DoorbellBridge
	return c.Quiesced(func() (err error) { w.bridge, err = allocBridge(rt, kind, n); return err })
}

// allocBridge allocates the words of n lanes.
func allocBridge(rt gpu.Runtime, kind gpu.MemKind, n int) (gpu.Memory, error) {
	m, err := rt.Alloc(kind, align.Up(int64(n)*bridgeStride, controller.PageSize))
	if err == nil && m.Host() == nil {
		err = errors.Join(errors.New(rt.Name()+" gives the CPU no view of "+kind.String()+" memory, from which the bridge would forward doorbells"), m.Close())
	}
	return m, err
}
