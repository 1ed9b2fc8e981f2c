package engine

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A lone read, write or flush that a controller in software can carry out at once needs a queue pair, but not its rings: its caller has the lane to itself, and does the controller's
// work, too.

// loneCount is what a lane has moved so.
type loneCount struct {
	commands, bytesRead, bytesWritten atomic.Uint64
}

// add counts one command.
func (c *loneCount) add(op nvme.Opcode, bytes uint32) {
	c.commands.Add(1)
	switch op {
	case nvme.IOWrite:
		c.bytesWritten.Add(uint64(bytes))
	case nvme.IORead:
		c.bytesRead.Add(uint64(bytes))
	}
}

// forget begins anew.
func (c *loneCount) forget() {
	c.commands.Store(0)
	c.bytesRead.Store(0)
	c.bytesWritten.Store(0)
}

// LoneMost is how many bytes a command that Lone carries out has at most; 0: it carries out none.
func (e *Engine) LoneMost() int64 { return e.c.LoneMost() }

// Lone carries out a command on an idle lane, and says whether it has: then it has succeeded. Else the caller
// sends it by Do. It has no deadline, as nothing has that the caller's thread does in a system call.
func (e *Engine) Lone(cmd controller.LoneCommand) bool {
	if e.cpu != nil {
		if cmd.Bytes >= longCommand && (!e.cfg.HostOnCPU || e.c.DeviceAt(cmd.Data) != "") || !e.cpu.Lone(cmd) {
			return false
		}
		e.router.softwares.Add(1)
		return true
	}
	k := e.kindAt(cmd.Data, cmd.Bytes)
	lanes, weight := e.open(k), k.weight()+1
	first := e.loneFirst()
	for i := range lanes {
		l := lanes[(first+i)%len(lanes)]
		if l.load.Load() != 0 || !l.load.CompareAndSwap(0, weight) {
			continue
		}
		done := l.lone(cmd)
		l.load.Add(-weight)
		return done
	}
	return false
}

// loneFirst is the lane that a lone command tries first: each of Go's processors has one of its own, for what a lane and its queue pair keep of a command would go from one
// CPU's cache to the other's if all took the first idle one.
func (e *Engine) loneFirst() int {
	at, ok := e.loneAt.Get().(*int)
	if !ok {
		at = new(int)
		*at = int(e.loneNext.Add(1)-1) % len(e.lanes)
	}
	first := *at
	e.loneAt.Put(at)
	return first
}

// lone is Lone on a lane whose load is the caller's.
func (l *lane) lone(cmd controller.LoneCommand) bool {
	e := l.e
	if e.closed.Load() || !l.drive.TryLock() {
		return false
	}
	_, steps := e.drv.(*stepDriver)
	done := steps && l.broken == nil && e.c.Lone(l.qid, cmd)
	if done {
		l.lones.add(cmd.Op, cmd.Bytes)
	}
	l.handOver()
	return done
}
