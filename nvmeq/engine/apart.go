package engine

import (
	"slices"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Commands whose data is in a GPU's memory, apart from all others and from those of other GPUs. A software controller carries them out on the thread of who drives the lane, and that
// thread calls the GPU's driver, which may not return. Whoever drives a lane does so for all batches on it. So where the controller works on the callers' threads a lane has batches of
// one kind at a time, and some lanes never have the one kind or the other:
//
//	the first quarter  no commands of a GPU's memory: they are there for all others, however many of those hang
//	the rest           an equal share for each GPU, so that the commands of one wait for no copy to another:
//	  the last of it     only commands of that GPU's memory: so these need no lane that has others
//	  the others         the kind of who came first, until they are idle
//
// Lanes of a GPU, whose commands threads of the controller carry out, are not divided so, nor are fewer than apartLeast.

const (
	// apartLeast is how many lanes are worth dividing.
	apartLeast = 4
	// deviceWeight is a part of the load of a batch whose data is in a GPU's memory: what else a lane's batches weigh is less.
	deviceWeight = 1 << 40
)

// kind is whose memory the data of a batch is in: 0 no GPU's, i that of the i-th GPU for which there are lanes.
type kind int

// weight is the part of a batch's load that its kind is.
func (k kind) weight() int64 {
	if k == 0 {
		return 0
	}
	return deviceWeight
}

// divide divides the lanes, once, where that is needed. Of 16 lanes that leaves as many to one GPU's memory as a copy engine has streams.
func (e *Engine) divide(devices []string) {
	if !e.here || !e.c.Simulated() || len(e.lanes) < apartLeast {
		return
	}
	n := len(e.lanes) / 4
	free, rest := slices.Clone(e.lanes[:n]), e.lanes[n:]
	e.devices, e.opens = devices, make([][]*lane, 1+min(len(devices), len(rest)))
	for i, shares := 0, len(e.opens)-1; i < shares; i++ {
		share := rest[i*len(rest)/shares : (i+1)*len(rest)/shares]
		free = append(free, share[:len(share)-1]...)
		e.opens[1+i] = share
	}
	e.opens[0] = free
}

// divided says whether lanes have batches of one kind at a time.
func (e *Engine) divided() bool { return len(e.opens) > 0 }

// kind is that of a batch, 0 if the lanes are not divided.
func (e *Engine) kind(cmds []Command) kind {
	for i := range cmds {
		if k := e.kindAt(cmds[i].Data, cmds[i].Len); k != 0 {
			return k
		}
	}
	return 0
}

// kindAt is the kind of a command with n bytes of data there, 0 if the lanes are not divided.
func (e *Engine) kindAt(data nvme.IOVA, n uint32) kind {
	if n == 0 || !e.divided() {
		return 0
	}
	of := e.c.DeviceAt(data)
	if of == "" {
		return 0
	}
	i := max(slices.Index(e.devices, of), 0) // another GPU's is carried out by the first's, as everywhere
	return kind(1 + i%(len(e.opens)-1))
}

// open is the lanes that batches of a kind may have.
func (e *Engine) open(k kind) []*lane {
	if !e.divided() {
		return e.lanes
	}
	return e.opens[k]
}

// join adds the weight of a batch of a kind to the lane with the least load among those that have no other kind. There is one, since some are open to no other kind, unless callers
// have named lanes.
func (e *Engine) join(k kind, weight int64) *lane {
	for {
		best, least := (*lane)(nil), int64(0)
		for _, l := range e.open(k) {
			u := l.load.Load()
			if same := u == 0 || (u >= deviceWeight) == (k != 0); same && (best == nil || u < least) {
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
