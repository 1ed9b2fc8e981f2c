package main

import (
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// ladder is what may be tried, the best first: what was asked for, or what suits the controller's machine. Where there is but
// one rung it is taken as it is, and what is wrong with it ends the mount.
func (c *drive) ladder(cfg *mountConfig) engine.Ladder {
	gpu, drive := !c.rt.Facts().CallerDriven, isFunction(cfg.Device)
	l := engine.Ladder{Doorbells: []engine.DoorbellRoute{cfg.Doorbell}, Modes: []controller.MemoryMode{0}}
	switch {
	case cfg.MemoryMode != nil:
		l.Modes[0] = *cfg.MemoryMode
	case c.bar != nil:
		// A drive reaches device memory by itself: everything in it, or the data, or the queues.
		l.Modes = []controller.MemoryMode{controller.ModeSQ | controller.ModeCQ | controller.ModeData, controller.ModeData, controller.ModeSQ | controller.ModeCQ, 0}
	case gpu && drive:
		// A GPU's lanes poll their queues in its memory for nothing. What programs on the CPU read and write stays in host
		// memory: over PCIe they read device memory slowly, and lanes that leave a GPU that fails leave its memory too.
		l.Modes = []controller.MemoryMode{controller.ModeSQ | controller.ModeCQ, 0}
	}
	// A software controller is the CPU: it polls its queues in host memory, and nothing that is elsewhere is better for it. The
	// host runtime's own device memory is host memory.
	if l.Modes[0]&controller.ModeDoorbell != 0 || cfg.Doorbell != engine.DoorbellAuto || !gpu {
		return l
	}
	// A CPU stores to the BAR that is mapped; that a GPU's stores arrive there is to be seen.
	l.Doorbells = []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellBridge}
	if drive {
		// Drivers that do not register another's BAR may import it. A reset revokes that, so it is the second.
		l.Doorbells = []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect, engine.DoorbellBridge}
	}
	return l
}
