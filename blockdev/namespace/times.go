package namespace

import (
	"context"
	"runtime/trace"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// times are the latencies of three layers: a call of Do, with its wait for other requests and memory; its commands on the lanes; each
// command from its posting to its completion, as the lane's own clock measures it, which is the controller's time.
// A command that goes by the way of lone takes all three the same time, and is counted once, in lone, which all three include.
type times struct{ device, lanes, controller, lone *latency.Layer }

// The kinds of all three. A call of several requests counts as the first.
const (
	timeRead = iota
	timeWrite
	timeFlush
	timeDiscard
	timeWriteZeroes
)

func newTimes() times {
	layer := func(name string) *latency.Layer {
		return latency.NewLayer(name, "read", "write", "flush", "discard", "write_zeroes")
	}
	t := times{layer("device"), layer("lanes"), layer("controller"), layer("lone")}
	for _, l := range []*latency.Layer{t.device, t.lanes, t.controller} {
		l.Include(t.lone)
	}
	return t
}

// kindOf is the kind of a call of Do.
func kindOf(reqs []*blockdev.Request) int {
	switch reqs[0].Op {
	case blockdev.OpRead:
		return timeRead
	case blockdev.OpWrite:
		return timeWrite
	case blockdev.OpFlush:
		return timeFlush
	case blockdev.OpDiscard:
		return timeDiscard
	}
	return timeWriteZeroes
}

// kindOfCommand is the kind of a command. Write Zeroes that a controller lacks are counted as the writes that they become.
func kindOfCommand(op nvme.Opcode) int {
	switch op {
	case nvme.IORead:
		return timeRead
	case nvme.IOWrite:
		return timeWrite
	case nvme.IOFlush:
		return timeFlush
	case nvme.IODSM:
		return timeDiscard
	}
	return timeWriteZeroes
}

// begin and end time the lanes' work on the commands of a call, by two clocks.
func (t *times) begin(cmds []engine.Command, by *latency.Clock) latency.Op {
	return t.lanes.StartBy(by, kindOfCommand(cmds[0].Op))
}

func (t *times) end(op latency.Op, cmds []engine.Command, by *latency.Clock) {
	op.EndBy(by)
	var of latency.Batch
	for i := range cmds {
		c := &cmds[i]
		if c.Latency > 0 {
			t.controller.AddTo(&of, kindOfCommand(c.Op), c.Latency)
			if trace.IsEnabled() {
				trace.Logf(context.Background(), "command", "queue %d: %s of %d bytes, %v in the controller", c.QID, c.Op.Name(false), c.Len, c.Latency)
			}
		}
	}
	of.End()
}

// Times are the latencies of the device's layers since it was opened.
func (d *Namespace) Times() (all []latency.Summary) {
	for _, l := range []*latency.Layer{d.times.device, d.times.lanes, d.times.controller} {
		all = append(all, l.Summaries()...)
	}
	return all
}
