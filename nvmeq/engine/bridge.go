package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/lanefs/lanefs/nvmeq/controller"
)

// DoorbellRoute is the way from a lane's store to a doorbell of the controller.
type DoorbellRoute uint8

const (
	DoorbellAuto   DoorbellRoute = iota // the BAR if the runtime can register it, else the bridge
	DoorbellDirect                      // kernels store to BAR 0, which their runtime imports from a descriptor
	DoorbellBAR                         // kernels store to BAR 0; the process's mapping of it is registered as I/O memory
	DoorbellBridge                      // kernels store to other memory, and the CPU thread that drives the lane writes the value to BAR 0
)

func (r DoorbellRoute) String() string {
	return [...]string{"auto", "direct", "iomem", "bridge"}[r]
}

// bridgeStride is the bytes from one lane's words to the next: a cache line.
const bridgeStride = 64

// openDoorbells opens the memory that lanes store doorbells to: BAR 0, or the bridge's words.
func (w *resources) openDoorbells(e *Engine, n int) (err error) {
	c := e.c
	kind, route := c.Placement().Doorbell, e.cfg.Doorbell
	if route == DoorbellDirect && c.Failover() != nil {
		route = DoorbellAuto // kernels on the CPU need no descriptor
	}
	switch {
	case e.peer:
		return w.openPeerDoorbells(e, n)
	case e.rt != nil: // the CPU reaches the BAR, whatever lanes elsewhere do
		w.route, w.ownBAR = DoorbellBAR, true
		w.bar, err = c.RegisterBAR(e.rt)
		return err
	case route == DoorbellBridge:
	case kind.Device() && route != DoorbellAuto:
		return fmt.Errorf("doorbells are either in the BAR (%v) or in device memory (memory mode bit 2), which takes the bridge", route)
	case kind.Device():
		e.noBAR = errors.New("the memory mode puts them in device memory")
	case route == DoorbellDirect:
		w.route, w.ownBAR = route, true
		return c.Quiesced(func() (err error) { w.bar, err = c.ImportBAR(); return err })
	default:
		err := c.Quiesced(func() (err error) { w.bar, err = c.AcquireBAR(); return err })
		if err == nil {
			w.route = DoorbellBAR
			return nil
		}
		err = fmt.Errorf("registering BAR 0 with %s: %w", c.Runtime().Name(), err)
		if route == DoorbellBAR {
			return err
		}
		e.noBAR = err
		c.Log().Info("doorbells go over the bridge", "device", c.Name(), "why", err.Error())
	}
	w.route = DoorbellBridge
	err = c.Quiesced(func() (err error) {
		w.bridge, err = allocBridge(c.Runtime(), kind, n)
		return err
	})
	return err
}

// Doorbells is the route in use, and why DoorbellAuto did not choose a better one.
func (e *Engine) Doorbells() (DoorbellRoute, error) {
	e.statsMu.RLock()
	defer e.statsMu.RUnlock()
	if e.route == DoorbellBridge {
		return e.route, e.noBAR
	}
	return e.route, nil
}

// placeDoorbells is the addresses of the lane's tail and head doorbells for its kernel.
func (l *lane) placeDoorbells(w *resources) (sq, cq uint64) {
	s := l.e.c.Doorbells()
	l.bridge = nil
	if w.bridge == nil {
		return uint64(w.bar.At(s.SQ(l.qid))), uint64(w.bar.At(s.CQ(l.qid)))
	}
	off := int64(l.index) * bridgeStride
	l.bridge = (*[2]uint32)(unsafe.Pointer(&w.bridge.Host()[off]))
	return uint64(w.bridge.Addr()) + uint64(off), uint64(w.bridge.Addr()) + uint64(off) + 4
}

// resetDoorbells follows the creation of a queue pair: its doorbells are zero.
func (l *lane) resetDoorbells() {
	if l.bridge != nil {
		atomic.StoreUint32(&l.bridge[0], 0)
		atomic.StoreUint32(&l.bridge[1], 0)
	}
	l.forwarded = [2]uint32{}
}

// forward is the bridge: it writes new values of the words to BAR 0. A head or tail cannot wrap around to the same value between
// two calls, since there are fewer CIDs than entries.
func (l *lane) forward() {
	if l.bridge == nil {
		return
	}
	for i, off := range [2]int64{l.e.c.Doorbells().SQ(l.qid), l.e.c.Doorbells().CQ(l.qid)} {
		// Acquire: the kernel released its entries before this word; the write to the BAR comes after the load.
		if v := atomic.LoadUint32(&l.bridge[i]); v != l.forwarded[i] {
			l.forwarded[i] = v
			l.e.c.Transport().Write32(off, v)
		}
	}
}

// kick has the lane's kernel poll its rings, and forwards the doorbells it rang.
func (l *lane) kick() error {
	err := l.e.drv.kick(l)
	l.forward()
	if err != nil {
		return controller.RuntimeError{Err: fmt.Errorf("lane %d: %w", l.index, err)}
	}
	return nil
}
