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
	if uint64(l.c.blocks) > 1<<32 && !wide {
		return nil, fmt.Errorf("%w: %d blocks need 64-bit block numbers in the journal", ErrUnsupported, l.c.blocks)
	}
	l.sb.upgrade()
	// Checksums of the first version and commits without a flush before them are not written.
	l.sb.compat &^= compatChecksum
	l.sb.incompat = FeatureRevoke
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
		return nil, fmt.Errorf("%w: the journal has %d blocks, %d are the least", ErrUnsupported, l.last, minLogBlocks)
	}
	s := &logSink{l: l, c: l.c, head: l.sb.first, seq: l.sb.sequence + 1, room: l.capacity() - 1,
		live: map[Block]*due{}, flying: map[Block]bool{}, stopped: make(chan struct{})}
	if h := l.sb.head; h >= l.sb.first && h < l.last {
		s.head = h // go on where the last one stopped: older transactions stay readable for those who look for them
	}
	s.changed, s.kick = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	most := min(int(l.capacity()/4), maxTransactionBytes/l.c.blockSize)
	j, err := open(l.c, cfg, s, most, s.seq)
	if err != nil {
		return nil, err
	}
	s.j = j
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
