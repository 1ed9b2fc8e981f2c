package jbd2

import (
	"errors"
	"fmt"
	"sync"
)

// Checksum is how the blocks of a log are protected.
type Checksum uint8

const (
	ChecksumNone Checksum = iota
	ChecksumV2
	ChecksumV3 // what goes with metadata_csum
)

// ErrNeedsRecovery is reported by Start for a log that was not recovered.
var ErrNeedsRecovery = errors.New("journal needs recovery")

// Start opens the journal for writing. The log must be empty: see Scan and Recovery.Finish. sum is what the volume's
// features ask for, wide that it has 64-bit block numbers; the superblock changes accordingly with the first commit.
func (l *Log) Start(cfg Config, sum Checksum, wide bool) (*Journal, error) {
	if l.sb.start != 0 {
		return nil, ErrNeedsRecovery
	}
	if err := l.configure(sum, wide, 0); err != nil {
		return nil, err
	}
	head := l.sb.first
	if h := l.sb.head; h >= l.sb.first && h < l.last {
		head = h // go on where the last one stopped: older transactions stay readable, for debugfs
	}
	return l.run(cfg, head, l.sb.sequence+1, false)
}

// Resume is Finish and Start for a log whose fast commits are still to be replayed: until the first transaction of the
// journal is committed, a recovery finds them again, and from then on it does not, so what that transaction does is done
// once. Replay must be done before.
func (r *Recovery) Resume(cfg Config, sum Checksum, wide bool) (*Journal, error) {
	l := r.l
	if err := l.c.FlushDevice(); err != nil {
		return nil, err
	}
	if err := l.configure(sum, wide, l.sb.incompat&FeatureFastCommit); err != nil {
		return nil, err
	}
	// Fast commits belong to the transaction that would have come next.
	l.sb.start, l.sb.sequence = r.head, r.end
	if err := l.writeSuper(); err != nil {
		return nil, err
	}
	return l.run(cfg, r.head, r.end, true)
}

// configure sets the features that transactions are written with. They become durable with the superblock.
func (l *Log) configure(sum Checksum, wide bool, keep Features) error {
	if uint64(l.c.blocks) > 1<<32 && !wide {
		return fmt.Errorf("%w: %d blocks need 64-bit block numbers in the journal", ErrUnsupported, l.c.blocks)
	}
	l.sb.upgrade()
	// Checksums of the first version and commits without a flush before them are not written.
	l.sb.compat &^= compatChecksum
	l.sb.incompat = FeatureRevoke | keep
	l.sb.sumType = 0
	switch sum {
	case ChecksumV2:
		l.sb.incompat |= FeatureChecksumV2
		l.sb.sumType = checksumCRC32C
	case ChecksumV3:
		l.sb.incompat |= FeatureChecksumV3
		l.sb.sumType = checksumCRC32C
	}
	if wide {
		l.sb.incompat |= Feature64Bit
	}
	l.relayout()
	if l.last < minLogBlocks {
		return fmt.Errorf("%w: the journal has %d blocks, %d are the least", ErrUnsupported, l.last, minLogBlocks)
	}
	return nil
}

// run starts the journal: its first transaction is seq, at head. begun says that the superblock says so.
func (l *Log) run(cfg Config, head uint32, seq TID, begun bool) (*Journal, error) {
	s := &logSink{l: l, c: l.c, head: head, seq: seq, begun: begun, room: l.capacity() - 1,
		live: map[Block]*due{}, flying: map[Block]bool{}, stopped: make(chan struct{})}
	s.changed, s.kick = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	most := min(int(l.capacity()/4), maxTransactionBytes/l.c.blockSize)
	j, err := open(l.c, cfg, s, most, s.seq)
	if err != nil {
		return nil, err
	}
	s.j = j
	if err := j.reserve(); err != nil {
		j.mu.Lock()
		j.quit = true
		j.work.Signal()
		j.mu.Unlock()
		return nil, err
	}
	send := s.sendHome
	l.c.writeHome.Store(&send)
	go s.checkpointer()
	return j, nil
}

// Checkpoint commits and writes everything home: the log holds nothing that the volume does not.
func (j *Journal) Checkpoint() error {
	if err := j.Commit(); err != nil {
		return err
	}
	if s, ok := j.sink.(*logSink); ok {
		return s.drain()
	}
	return nil
}
