package softctl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Opcodes of the NVM command set ([NVM] figure "Opcodes for NVM Commands").
const (
	opFlush       = 0x00
	opWrite       = 0x01
	opRead        = 0x02
	opCompare     = 0x05
	opWriteZeroes = 0x08
	opDSM         = 0x09
	opVerify      = 0x0c
)

const nsidAll = 0xffffffff

// io carries out an I/O command, or begins it as one of b. The order of the checks is the order in which a failure is reported.
func (c *Controller) io(q *subQueue, cmd *command, b *batch) Status {
	switch cmd.opcode {
	case opFlush, opWrite, opRead, opCompare, opWriteZeroes, opVerify:
	case opDSM:
		if !c.canDeallocate() {
			return invalidOpcode
		}
	default:
		return invalidOpcode
	}
	if cmd.fuse != 0 || cmd.psdt != 0 { // no fused operations, no SGLs
		return invalidField
	}
	if cmd.opcode == opFlush && cmd.nsid == nsidAll {
		return c.flushLater(q, cmd, c.ns...)
	}
	ns, ok := c.namespace(cmd.nsid)
	if !ok {
		return invalidNamespace
	}
	if cmd.opcode != opRead && cmd.opcode != opWrite {
		b.settle(c)
		if cmd.opcode != opFlush {
			b.leave()
		}
	}
	switch cmd.opcode {
	case opFlush:
		return c.flushLater(q, cmd, ns)
	case opDSM:
		return c.datasetManagement(q, cmd, ns)
	}

	blocks := cmd.blocks()
	moves := cmd.opcode == opRead || cmd.opcode == opWrite || cmd.opcode == opCompare
	if (moves || cmd.opcode == opVerify) && c.opt.MaxTransfer != Unlimited && blocks<<ns.shift > uint64(c.opt.MaxTransfer) {
		return invalidField
	}
	if cmd.opcode == opWrite && cmd.cdw12>>20&15 != 0 { // DTYPE: no directives
		return invalidField
	}
	off, n, st := ns.span(cmd.slba(), blocks)
	if st != success {
		return st
	}
	if c.opt.ReadOnly && (cmd.opcode == opWrite || cmd.opcode == opWriteZeroes) {
		return writeProtected
	}
	durable := c.durable(cmd)
	if q.direct.begins(cmd, n, c.threads == nil && q.head == q.tail && len(q.held) == 0, durable) {
		return c.begin(q, cmd, ns, off, n, durable)
	}
	if q.direct.inFlight() > 0 && !c.submit(q) { // before what may wait
		return noCompletion
	}
	v := &q.data
	v.reset()
	if moves {
		if st := c.dma.walkPRP(v, cmd.prp1, cmd.prp2, n, q.page); st != success {
			return st
		}
	}
	if cmd.opcode == opRead || cmd.opcode == opWrite {
		return c.transfer(q, cmd, ns, v, off, n, b)
	}

	switch cmd.opcode {
	case opWriteZeroes:
		return c.mediaStatus("write zeroes", ns, off, WriteFault, ns.medium.Zero(off, n, c.durable(cmd), cmd.arrival))
	case opCompare:
		return c.compare(q, ns, v, off, n, true)
	default: // Verify: what can be read is right
		return c.compare(q, ns, v, off, n, false)
	}
}

// durable says whether a write is on the medium when it completes.
func (c *Controller) durable(cmd *command) bool { return cmd.fua() || !c.cached.Load() }

// longCopy is how many bytes take the CPU longer than it takes to wake a thread.
const longCopy = 128 << 10

// transfer carries out a Read or Write of n bytes at off, whose memory is v.
func (c *Controller) transfer(q *subQueue, cmd *command, ns *namespace, v *vector, off, n int64, b *batch) Status {
	if b.takes(v) {
		var st Status
		if cmd.opcode == opRead {
			st = b.read(c, q, cmd, ns, v, off, n)
		} else {
			st = b.write(q, cmd, ns, v, off, n)
		}
		if st != full && st != alone {
			return st
		}
	}
	// What takes longer than a small copy by the CPU keeps neither the batch waiting nor other queues.
	if v.staged || n >= longCopy || cmd.opcode == opWrite && c.durable(cmd) {
		if b.busy() {
			b.settle(c)
			return c.io(q, cmd, b) // settle may have used v
		}
		b.leave()
	}
	if cmd.opcode == opRead {
		return c.read(q, ns, v, off, n, b)
	}
	return c.write(q, cmd, ns, v, off, n)
}

func (c *Controller) read(q *subQueue, ns *namespace, v *vector, off, n int64, b *batch) Status {
	var err error
	switch {
	case v.staged:
		err = v.readStaged(ns.medium, off)
	case n < longCopy && b.copies(ns, v.host(), off, n):
	default:
		err = ns.medium.Read(v.host(), off)
	}
	switch {
	case err == errMover:
		return dataTransferError
	case err != nil:
		return c.mediaStatus("read", ns, off, unrecoveredRead, err)
	}
	q.stats.moved(false, n)
	return success
}

func (c *Controller) write(q *subQueue, cmd *command, ns *namespace, v *vector, off, n int64) Status {
	if v.gather() != nil {
		return dataTransferError
	}
	return c.store(q, cmd, ns, v.host(), off, n)
}

// store writes to the image.
func (c *Controller) store(q *subQueue, cmd *command, ns *namespace, from *media.Buffers, off, n int64) Status {
	if err := ns.medium.Write(from, off, c.durable(cmd), cmd.arrival); err != nil {
		return c.mediaStatus("write", ns, off, WriteFault, err)
	}
	q.stats.moved(true, n)
	return success
}

// compare reads the range into scratch memory and, for Compare, holds the command's data against it.
func (c *Controller) compare(q *subQueue, ns *namespace, v *vector, off, n int64, data bool) Status {
	if int64(len(q.block)) < n {
		q.block = make([]byte, n)
	}
	medium := q.block[:n]
	var b media.Buffers
	b.Add(medium)
	if err := ns.medium.Read(&b, off); err != nil {
		return c.mediaStatus("read", ns, off, unrecoveredRead, err)
	}
	if !data {
		return success
	}
	host := make([]byte, n)
	if v.get(host) != nil {
		return dataTransferError
	}
	if !bytes.Equal(host, medium) {
		return compareFailure
	}
	q.stats.moved(false, n)
	return success
}

// canDeallocate says whether there is Dataset Management.
func (c *Controller) canDeallocate() bool {
	return !slices.ContainsFunc(c.files, func(m *media.Image) bool { return !m.Discards() })
}

// zeroesFreed says whether deallocated blocks read as zeroes (Identify's DLFEAT): an image file's do.
func (c *Controller) zeroesFreed() bool {
	return !slices.ContainsFunc(c.files, func(m *media.Image) bool { return !m.DiscardsToZero() })
}

// datasetManagement is the attribute Deallocate; the others are hints and are taken as such ([NVM] 3.2.3).
func (c *Controller) datasetManagement(q *subQueue, cmd *command, ns *namespace) Status {
	const entry = 16
	ranges := int64(cmd.cdw10&0xff) + 1
	v := &q.data
	v.reset()
	if st := c.dma.walkPRP(v, cmd.prp1, cmd.prp2, ranges*entry, q.page); st != success {
		return st
	}
	var buf [256 * entry]byte
	if v.get(buf[:ranges*entry]) != nil {
		return dataTransferError
	}
	// All ranges are checked before the first is acted on.
	for i := range ranges {
		e := buf[i*entry:]
		if _, _, st := ns.span(binary.LittleEndian.Uint64(e[8:]), uint64(binary.LittleEndian.Uint32(e[4:]))); st != success {
			return st
		}
	}
	if cmd.cdw11&4 == 0 { // AD
		return success
	}
	if c.opt.ReadOnly {
		return writeProtected
	}
	var all [][2]int64
	for i := range ranges {
		e := buf[i*entry:]
		if off, n, _ := ns.span(binary.LittleEndian.Uint64(e[8:]), uint64(binary.LittleEndian.Uint32(e[4:]))); n > 0 {
			all = append(all, [2]int64{off, n})
		}
	}
	if q.direct != nil && len(all) > 0 && !c.zeroesFreed() {
		return c.beginDiscard(q, cmd, ns, all)
	}
	for _, r := range all {
		off, n := r[0], r[1]
		var err error
		if c.zeroesFreed() {
			err = ns.medium.Zero(off, n, !c.cached.Load(), cmd.arrival)
		} else {
			err = ns.medium.Discard(off, n)
		}
		if err != nil {
			return c.mediaStatus("deallocate", ns, off, WriteFault, err)
		}
	}
	return success
}

// fullPause is how long no write is refused for lack of room before the next one is said again.
const fullPause = 10 * time.Second

// mediaStatus turns an error of the image into a status, and logs what the status cannot say. A write for which there is no room
// has changed nothing that was there before, but perhaps a part of its range: Capacity Exceeded ([BASE] figure "Generic Command
// Status Values"). What was accepted and could not be made durable is another matter: that is lost.
func (c *Controller) mediaStatus(what string, ns *namespace, off int64, st Status, err error) Status {
	if err == nil {
		return success
	}
	lba := uint64(off-ns.base) >> ns.shift
	var lost *media.LostError
	switch {
	case errors.As(err, &lost) || errors.Is(err, media.ErrTruncated):
		st |= doNotRetry
		c.imageFailed(what, ns, lba, err)
	case media.NoRoom(err):
		st = capacityExceeded
		now := time.Now()
		if last := ns.lastFull.Swap(&now); last != nil && now.Sub(*last) < fullPause { // by the clock that nobody sets
			break // it goes on: a host that waits for room tries more often
		}
		why := "no space left for the image: make room in its file system"
		if errors.Is(err, unix.EFBIG) {
			why = "the process may not write to so large a file: raise that limit (ulimit -f, prlimit --fsize, or LimitFSIZE of a unit)"
		}
		c.log.Error(why, "image", ns.image.Path(), "command", what, "nsid", ns.id, "lba", lba)
	case media.Protected(err) && st != unrecoveredRead:
		st = writeProtected
		c.imageProtected(what, ns, lba, err)
	default:
		c.imageFailed(what, ns, lba, err)
	}
	c.errors.media.Add(1)
	return st
}
