package main

import "github.com/lanefs/lanefs/nvmeq"

// ladder is what may be tried, the best first: what was asked for, or what suits the controller's machine. Where there is but
// one rung it is taken as it is, and what is wrong with it ends the mount.
func (c *controller) ladder(cfg *mountConfig) nvmeq.Ladder {
	l := nvmeq.Ladder{Doorbells: []nvmeq.DoorbellRoute{cfg.Doorbell}, Modes: []nvmeq.MemoryMode{0}}
	switch {
	case cfg.MemoryMode != nil:
		l.Modes[0] = *cfg.MemoryMode
	case c.vram != nil:
		// A drive reaches device memory by itself: everything in it, or the data, or the queues.
		l.Modes = []nvmeq.MemoryMode{nvmeq.ModeSQ | nvmeq.ModeCQ | nvmeq.ModeData, nvmeq.ModeData, nvmeq.ModeSQ | nvmeq.ModeCQ, 0}
	}
	// A software controller is the CPU: it polls its queues in host memory, and nothing that is elsewhere is better for it. The
	// host runtime's own device memory is host memory.
	bells := l.Modes[0]&nvmeq.ModeDoorbell == 0 && cfg.Doorbell == nvmeq.DoorbellAuto
	if bells && !c.rt.Facts().CallerDriven {
		// A CPU stores to the BAR that is mapped; that a GPU's stores arrive there is to be seen.
		l.Doorbells = []nvmeq.DoorbellRoute{nvmeq.DoorbellBAR, nvmeq.DoorbellBridge}
	}
	return l
}
