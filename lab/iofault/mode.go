package iofault

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Mode is a way to fail.
type Mode struct {
	Name   string
	ops    []blockdev.Op // commands that can fail so; nil: allocations fail
	status nvme.Status   // 0: a time-out
	stay   stay
	done   done
}

// stay says what else fails after the first command or allocation.
type stay uint8

const (
	once   stay = iota
	thrice      // the next two commands or allocations, too
	blocks      // commands of the same kind on the same blocks
	sector      // all commands on the same blocks
	kind        // all commands of the same kind
	writes      // all commands that change the medium
	lost        // all commands
)

// done says how much of a command reaches the medium, or memory, before it fails.
type done uint8

const (
	none done = iota
	torn      // any part of its blocks
	all
	gone // a flush: the writes before it are lost, though reads see them
)

var (
	readOp  = []blockdev.Op{blockdev.OpRead}
	writeOp = []blockdev.Op{blockdev.OpWrite, blockdev.OpWriteZeroes}
	flushOp = []blockdev.Op{blockdev.OpFlush}
	trimOp  = []blockdev.Op{blockdev.OpDiscard}
	anyOp   = []blockdev.Op{blockdev.OpRead, blockdev.OpWrite, blockdev.OpWriteZeroes, blockdev.OpFlush, blockdev.OpDiscard}
)

const timeOut = nvme.Status(0)

// Modes are all ways to fail.
var Modes = []Mode{
	{"unrecovered read", readOp, nvme.StatusReadError, once, none},
	{"unrecovered read, part of the data came", readOp, nvme.StatusReadError, once, torn},
	{"unrecovered read for good", readOp, nvme.StatusReadError, blocks, none},
	{"bad sector from a read on", readOp, nvme.StatusReadError, sector, none},
	{"no reads from here on", readOp, nvme.StatusInternal, kind, none},
	{"write fault", writeOp, nvme.StatusWriteFault, once, none},
	{"write fault, torn", writeOp, nvme.StatusWriteFault, once, torn},
	{"write fault for good", writeOp, nvme.StatusWriteFault, blocks, torn},
	{"bad sector from a write on", writeOp, nvme.StatusWriteFault, sector, torn},
	{"capacity exceeded", writeOp, nvme.StatusCapacity, once, none},
	{"capacity exceeded for good", writeOp, nvme.StatusCapacity, kind, none},
	{"write protected from here on", append(slices.Clone(writeOp), flushOp...), nvme.StatusWriteProtected, writes, none},
	{"flush fails", flushOp, nvme.StatusInternal, once, none},
	{"flush fails, and works", flushOp, nvme.StatusInternal, once, all},
	{"flush fails, and loses what was written", flushOp, nvme.StatusInternal, once, gone},
	{"no flush from here on", flushOp, nvme.StatusInternal, kind, none},
	{"discard fails", trimOp, nvme.StatusInternal, once, torn},
	{"aborted", anyOp, nvme.StatusAbortRequested, once, none},
	{"aborted too late", anyOp, nvme.StatusAbortRequested, once, all},
	{"aborted in the middle, three times", anyOp, nvme.StatusAbortRequested, thrice, torn},
	{"timed out, nothing done", anyOp, timeOut, once, none},
	{"timed out, all done", anyOp, timeOut, once, all},
	{"timed out, torn", anyOp, timeOut, once, torn},
	{"timed out, and the controller is lost", anyOp, timeOut, lost, torn},
	{"no memory", nil, 0, once, none},
	{"no memory, three times", nil, 0, thrice, none},
	{"no memory from here on", nil, 0, kind, none},
}

func modeNamed(name string) (*Mode, error) {
	for k := range Modes {
		if Modes[k].Name == name {
			return &Modes[k], nil
		}
	}
	return nil, fmt.Errorf("mode %q: see Modes", name)
}

// memory reports whether the mode fails allocations.
func (m *Mode) memory() bool { return m.ops == nil }

// passes reports whether an operation that failed succeeds when it is repeated.
func (m *Mode) passes() bool { return m.stay <= thrice }

// suits reports whether a command can fail in this mode.
func (m *Mode) suits(op blockdev.Op) bool { return slices.Contains(m.ops, op) }

var opcodes = map[blockdev.Op]nvme.Opcode{blockdev.OpRead: nvme.IORead, blockdev.OpWrite: nvme.IOWrite, blockdev.OpFlush: nvme.IOFlush,
	blockdev.OpDiscard: nvme.IODSM, blockdev.OpWriteZeroes: nvme.IOWriteZeroes}

// err returns the device's error for a request.
func (m *Mode) err(r *blockdev.Request, lba blockdev.Bytes) error {
	if m.status == timeOut {
		return fmt.Errorf("nvme: %v: %w after %v, 3 times", r.Op, controller.ErrTimeout, 10*time.Second)
	}
	err := &nvme.StatusError{Opcode: opcodes[r.Op], NSID: 1, HasLBA: r.Op != blockdev.OpFlush, LBA: uint64(r.Off / lba), Blocks: uint32(r.Length() / lba), Status: m.status}
	switch m.status { // as namespace.Namespace says it
	case nvme.StatusCapacity:
		return fmt.Errorf("%w: %w", blockdev.ErrNoSpace, err)
	case nvme.StatusWriteProtected:
		return fmt.Errorf("%w: %w", blockdev.ErrReadOnly, err)
	}
	return err
}

// armed is a fault that waits for its command.
type armed struct {
	hits   atomic.Int64
	first  atomic.Pointer[blockdev.Event] // nil when an allocation failed
	remove func()
}

// arm makes the k-th command or allocation from now on fail, k from 1.
func (m *Mode) arm(dev *blockdev.TestDevice, k int, rng *rand.Rand) *armed {
	a := &armed{}
	times := map[stay]int{once: 1, thrice: 3}[m.stay]
	if m.memory() {
		a.remove = dev.Shorten(blockdev.Shortage{Skip: k - 1, Times: times, Hit: func(int) { a.hits.Add(1) }})
		return a
	}
	seed, lba := rng.Uint64(), dev.Info().BlockSize
	f := blockdev.Fault{Skip: k - 1, Times: times,
		Fail: func(r *blockdev.Request) error { return m.err(r, lba) },
		Hit: func(e blockdev.Event) {
			if a.hits.Add(1) == 1 {
				a.first.Store(&e)
			}
		}}
	switch m.done {
	case gone:
		f.Lose = true
	case all:
		f.Done = func(int) bool { return true }
	case torn:
		f.Done = func(block int) bool { return (seed>>(block%61))&1 != 0 }
	}
	switch m.stay {
	case blocks:
		f.Then = func(first blockdev.Event, r *blockdev.Request) bool { return r.Op == first.Op && first.Touches(r) }
	case sector:
		f.Then = func(first blockdev.Event, r *blockdev.Request) bool { return first.Touches(r) }
	case kind:
		f.Then = func(first blockdev.Event, r *blockdev.Request) bool { return r.Op == first.Op }
	case writes:
		f.Then = func(_ blockdev.Event, r *blockdev.Request) bool { return r.Op != blockdev.OpRead }
	case lost:
		f.Then = func(blockdev.Event, *blockdev.Request) bool { return true }
	}
	a.remove = dev.Inject(f)
	return a
}
