package softctl

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// queueStats counts what the controller saw of one queue pair: its submission queue and the completion queue of the
// same number. They survive the queues.
type queueStats struct {
	lone                          loneStats
	commands, failed, completions atomic.Uint64
	bytesRead, bytesWritten       atomic.Uint64
	reads, writes                 atomic.Uint64
	sqDoorbells, cqDoorbells      atomic.Uint64
	opcodes                       [256]atomic.Uint64 // but for lone
}

// loneStats is what a queue's lone commands count: few numbers, beside one another, since all that such a command touches is fetched anew when the CPU has slept.
type loneStats struct {
	reads, bytesRead, writes, bytesWritten, flushes atomic.Uint64
}

// all of a queue: lone commands and others.
func (s *queueStats) allRead() uint64    { return s.bytesRead.Load() + s.lone.bytesRead.Load() }
func (s *queueStats) allWritten() uint64 { return s.bytesWritten.Load() + s.lone.bytesWritten.Load() }
func (s *queueStats) allReads() uint64   { return s.reads.Load() + s.lone.reads.Load() }
func (s *queueStats) allWrites() uint64  { return s.writes.Load() + s.lone.writes.Load() }

// add counts a read, write or flush of n bytes.
func (s *loneStats) add(op nvme.Opcode, n int64) {
	switch op {
	case opRead:
		s.reads.Add(1)
		s.bytesRead.Add(uint64(n))
	case opWrite:
		s.writes.Add(1)
		s.bytesWritten.Add(uint64(n))
	default:
		s.flushes.Add(1)
	}
}

// of is the number of commands of an opcode; nil: none goes alone.
func (s *loneStats) of(op nvme.Opcode) *atomic.Uint64 {
	switch op {
	case opRead:
		return &s.reads
	case opWrite:
		return &s.writes
	case opFlush:
		return &s.flushes
	}
	return nil
}

// moved counts a command that has read n bytes of the image, or written them.
func (s *queueStats) moved(write bool, n int64) {
	if write {
		s.writes.Add(1)
		s.bytesWritten.Add(uint64(n))
	} else {
		s.reads.Add(1)
		s.bytesRead.Add(uint64(n))
	}
}

// QueueCounters is what the controller counted for one queue number since it was opened.
type QueueCounters struct {
	ID           uint16
	Commands     uint64           // carried out, failed ones included
	Failed       uint64           // completed with an error
	Completions  uint64           // entries written to the completion queue of this number; a lone command (Controller.Lone) has none
	ByOpcode     map[uint8]uint64 // of Commands
	BytesRead    uint64           // by successful Reads and Compares, from the image to memory
	BytesWritten uint64           // by successful Writes
	SQDoorbells  uint64           // times the tail was seen changed; stores between two looks count once
	CQDoorbells  uint64           // likewise the head
}

// Counters gives the counters of every queue number that was ever used, the admin queue first.
func (c *Controller) Counters() []QueueCounters {
	var r []QueueCounters
	for i := range c.stats {
		s := c.stats[i].Load()
		if s == nil {
			continue
		}
		q := QueueCounters{
			ID:           uint16(i),
			Commands:     s.commands.Load(),
			Failed:       s.failed.Load(),
			Completions:  s.completions.Load(),
			ByOpcode:     map[uint8]uint64{},
			BytesRead:    s.allRead(),
			BytesWritten: s.allWritten(),
			SQDoorbells:  s.sqDoorbells.Load(),
			CQDoorbells:  s.cqDoorbells.Load(),
		}
		for op := range s.opcodes {
			n := s.opcodes[op].Load()
			if lone := s.lone.of(nvme.Opcode(op)); lone != nil {
				n += lone.Load()
				q.Commands += lone.Load()
			}
			if n > 0 {
				q.ByOpcode[uint8(op)] = n
			}
		}
		r = append(r, q)
	}
	return r
}

// statsOf gives queue id's counters. The caller holds Controller.mu.
func (c *Controller) statsOf(id uint16) *queueStats {
	s := c.stats[id].Load()
	if s == nil {
		s = new(queueStats)
		c.stats[id].Store(s)
	}
	return s
}

// sum adds one number of all queues.
func (c *Controller) sum(f func(*queueStats) uint64) (n uint64) {
	for i := range c.stats {
		if s := c.stats[i].Load(); s != nil {
			n += f(s)
		}
	}
	return n
}
