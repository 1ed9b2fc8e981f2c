package engine

import "sync/atomic"

// LaneStats is what one lane has done since the engine was made, as counted by the lane's own kernel code.
type LaneStats struct {
	Lane         int
	CPU          bool   // it runs on the CPU, beside lanes on a GPU
	GPU          string // the further GPU on which it runs (gpu.Facts.PCI); empty: not on such
	QID          uint16
	Commands     uint64 // submission queue entries written, and lone commands, which need none
	Lone         uint64 // of them, the lone ones (Engine.Lone)
	Completions  uint64 // completion queue entries reaped, likewise
	BytesRead    uint64 // controller to host, of successful commands
	BytesWritten uint64 // host to controller, likewise; the range lists of Dataset Management are among them
	SQDoorbells  uint64
	CQDoorbells  uint64
	Errors       uint64 // completions with a status other than success
	Timeouts     uint64
	Late         uint64 // completions of commands that had timed out
	Spurious     uint64 // completions that named nothing in flight
	Rejected     uint64 // work answered without being posted
}

// statsWait is how long Stats waits for kernels: one that runs ends by itself after residentLimit. A failover needs the lock that is held
// meanwhile, and it is just then that a kernel does not end.
const statsWait = 2 * residentLimit

// Stats reads every lane's counters. Each number is whole; those of a lane that is running may be from different steps.
// After Close it is what they were at the end. Their order is that of Lanes.
func (e *Engine) Stats() []LaneStats {
	all := e.laneStats()
	if e.cpu != nil {
		for _, s := range e.cpu.laneStats() {
			s.Lane, s.CPU = s.Lane+len(e.lanes), true
			all = append(all, s)
		}
	}
	for _, p := range e.peers {
		first := len(all)
		for _, s := range p.laneStats() {
			s.Lane, s.GPU = s.Lane+first, p.rt.Facts().PCI
			all = append(all, s)
		}
	}
	return all
}

// laneStats is Stats of the engine's own lanes.
func (e *Engine) laneStats() []LaneStats {
	e.statsMu.RLock()
	defer e.statsMu.RUnlock()
	if e.lastStats != nil {
		return append([]LaneStats(nil), e.lastStats...)
	}
	if d, resident := e.drv.(*residentDriver); resident {
		// A kernel writes its counters after the results. A lane that cannot be held shows what it last wrote.
		d.counted(statsWait)
	}
	return e.readStats()
}

func (e *Engine) readStats() []LaneStats {
	out := make([]LaneStats, len(e.lanes))
	for i, l := range e.lanes {
		out[i] = l.stats()
	}
	return out
}

func (l *lane) stats() LaneStats {
	c := l.counters
	get := atomic.LoadUint64
	now := LaneStats{
		Lane: l.index, QID: l.qid, Commands: get(&c.Commands), Completions: get(&c.Completions),
		BytesRead: get(&c.BytesRead), BytesWritten: get(&c.BytesWritten),
		SQDoorbells: get(&c.SqDoorbells), CQDoorbells: get(&c.CqDoorbells),
		Errors: get(&c.Errors), Timeouts: get(&c.Timeouts), Late: get(&c.Late), Spurious: get(&c.Spurious), Rejected: get(&c.Rejected),
	}
	alone := l.lones.commands.Load()
	now.Commands, now.Completions, now.Lone = now.Commands+alone, now.Completions+alone, alone
	now.BytesRead, now.BytesWritten = now.BytesRead+l.lones.bytesRead.Load(), now.BytesWritten+l.lones.bytesWritten.Load()
	b := &l.base
	for _, sum := range []struct {
		to   *uint64
		from uint64
	}{{&now.Commands, b.Commands}, {&now.Lone, b.Lone}, {&now.Completions, b.Completions}, {&now.BytesRead, b.BytesRead}, {&now.BytesWritten, b.BytesWritten},
		{&now.SQDoorbells, b.SQDoorbells}, {&now.CQDoorbells, b.CQDoorbells}, {&now.Errors, b.Errors}, {&now.Timeouts, b.Timeouts},
		{&now.Late, b.Late}, {&now.Spurious, b.Spurious}, {&now.Rejected, b.Rejected}} {
		*sum.to += sum.from
	}
	return now
}
