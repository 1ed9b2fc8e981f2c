package engine

import "errors"

// Lanes on the CPU beside lanes on a GPU. They are an engine of their own on the same controller, with memory and kernels of
// Config.CPU; only which of the two carries out a batch is decided here and in router.go. So both take part in resets and in a
// failover as any engine does: then the GPU's lanes move to the CPU, and these are made anew.
//
// Nothing is ordered between the two, as nothing is between lanes of one kind: a caller that needs an order waits for the first command
// before it sends the second. A Flush covers what had completed before, on any queue pair (Base §7.1).

// addCPULanes makes the lanes on the CPU. The engine goes without them where they cannot be had.
func (e *Engine) addCPULanes(cfg Config) error {
	if cfg.CPU == nil {
		return errors.Join(errors.New("nvme: engine: lanes on the CPU need a runtime that runs them"), e.Close())
	}
	if why := e.noCPULanes(); why != "" {
		e.c.Log().Warn("no lanes on the CPU: "+why, "device", e.c.Name())
		return nil
	}
	cfg.Lanes, cfg.Batch, cfg.Image, cfg.Doorbell = cfg.CPULanes, false, nil, DoorbellBAR
	cpu, err := newEngine(e.c, cfg, cfg.CPU)
	if err != nil {
		return errors.Join(err, e.Close())
	}
	cpu.here = true
	devices := []string{e.runtime().Facts().PCI}
	for _, rt := range cfg.More {
		devices = append(devices, rt.Facts().PCI)
	}
	cpu.divide(devices)
	pairs{e}.Hold() // a reset may drive the GPU's lanes already
	e.cpu = cpu
	pairs{e}.Release()
	return nil
}

// noCPULanes is why there can be none, or empty.
func (e *Engine) noCPULanes() string {
	if e.cfg.Batch {
		return "lanes that are launched for each batch have no heartbeat, which would say when they are needed"
	}
	free := e.c.AllocQIDs(1)
	if len(free) == 0 {
		return "the controller has no queue pairs left for them"
	}
	e.c.FreeQIDs(free)
	return ""
}

// step has a controller in software work on a queue: on this thread, if the lanes do too.
func (e *Engine) step(qid uint16) bool {
	if e.here {
		return e.c.StepHere(qid)
	}
	return e.c.Step(qid)
}

// CPULanes is how many lanes run on the CPU beside those on a GPU.
func (e *Engine) CPULanes() int {
	if e.cpu == nil {
		return 0
	}
	return len(e.cpu.lanes)
}
