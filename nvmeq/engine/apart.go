package engine

import "github.com/lanefs/lanefs/nvmeq/nvme"

// Commands whose data is in a GPU's memory, apart from all others. A software controller carries them out on the thread of who drives the lane, and that thread calls the GPU's
// driver, which may not return. Whoever drives a lane does so for all batches on it. So where the controller works on the callers' threads a lane has batches of one kind at a time,
// and some lanes never have the one kind or the other:
//
//	the first quarter  no commands of a GPU's memory: they are there for all others, however many of those hang
//	the last           only commands of a GPU's memory: so these need no lane that has others
//	those between      the kind of who came first, until they are idle
//
// Lanes of a GPU, whose commands threads of the controller carry out, are not divided so, nor are fewer than apartLeast.

const (
	// apartLeast is how many lanes are worth dividing.
	apartLeast = 4
	// deviceWeight is a part of the load of a batch whose data is in a GPU's memory: what else a lane's batches weigh is less.
	deviceWeight = 1 << 40
)

// reserved is how many lanes, the first ones, have no commands of a GPU's memory; 0: the lanes are not divided. Of 16 lanes that leaves as many to a GPU's memory as a copy engine has streams.
func (e *Engine) reserved() int {
	if !e.here || !e.c.Simulated() || len(e.lanes) < apartLeast {
		return 0
	}
	return len(e.lanes) / 4
}

// kind is deviceWeight if the lanes are divided and the data of a batch is in a GPU's memory, else 0.
func (e *Engine) kind(cmds []Command) int64 {
	if e.reserved() == 0 {
		return 0
	}
	for i := range cmds {
		if kind := e.kindAt(cmds[i].Data, cmds[i].Len); kind != 0 {
			return kind
		}
	}
	return 0
}

// kindAt is kind, on divided lanes, of a command with n bytes of data there.
func (e *Engine) kindAt(data nvme.IOVA, n uint32) int64 {
	if n > 0 && e.c.DeviceAt(data) != "" {
		return deviceWeight
	}
	return 0
}

// open is the lanes that batches of a kind may have.
func (e *Engine) open(kind int64) []*lane {
	switch n := e.reserved(); {
	case n == 0:
		return e.lanes
	case kind == 0:
		return e.lanes[:len(e.lanes)-1]
	default:
		return e.lanes[n:]
	}
}

// join adds the weight of a batch of a kind to the lane with the least load among those that have no other kind. There is one, since some are open to no other kind, unless callers
// have named lanes.
func (e *Engine) join(kind, weight int64) *lane {
	for {
		best, least := (*lane)(nil), int64(0)
		for _, l := range e.open(kind) {
			u := l.load.Load()
			if same := u == 0 || (u >= deviceWeight) == (kind != 0); same && (best == nil || u < least) {
				best, least = l, u
			}
		}
		if best == nil {
			best = e.pick(AnyLane)
			best.load.Add(weight)
			return best
		}
		if best.load.CompareAndSwap(least, least+weight) {
			return best
		}
	}
}
