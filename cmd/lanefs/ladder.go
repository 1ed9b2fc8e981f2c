package main

import (
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// ladder lists the placements to try, the best first: the one that was asked for, or those that suit the controller. A list of one is
// not tried: it is taken, and its error ends the mount.
func (c *drive) ladder(cfg *mountConfig) engine.Candidates {
	gpu, drive := !c.rt.Facts().CallerDriven, isFunction(cfg.Device)
	l := engine.Candidates{Doorbells: []engine.DoorbellRoute{cfg.Doorbell}, Modes: []controller.MemoryMode{0}}
	switch {
	case cfg.MemoryMode != nil:
		l.Modes[0] = *cfg.MemoryMode
	case c.bar != nil:
		// A drive reaches device memory by itself. Completions and data are in it together, or not: one of them alone would cost a look at a register for each batch of reads
		// (MemoryMode.Ordered). Submission queues are not: what the CPU stores there may be on its way to the one function when the other hears its doorbell.
		l.Modes = []controller.MemoryMode{controller.ModeCQ | controller.ModeData, 0}
	case gpu && drive:
		// A GPU's lanes write commands to the GPU's memory without PCIe traffic. Data stays in host memory: programs on the CPU would
		// read it from device memory slowly, over PCIe, and lanes that leave a GPU that fails leave its memory too. So completions stay
		// there too.
		l.Modes = []controller.MemoryMode{controller.ModeSQ, 0}
	}
	// A software controller runs on the CPU and polls its queues: host memory is the best place for them. The host runtime's own device
	// memory is host memory.
	if l.Modes[0]&controller.ModeDoorbell != 0 || cfg.Doorbell != engine.DoorbellAuto || !gpu {
		return l
	}
	// A CPU stores to the BAR that is mapped. Whether a GPU's stores arrive there has to be tried.
	l.Doorbells = []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellBridge}
	if drive {
		// A driver that does not register another function's BAR may import it. A reset of the function revokes the import, so it comes second.
		l.Doorbells = []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect, engine.DoorbellBridge}
	}
	return l
}
