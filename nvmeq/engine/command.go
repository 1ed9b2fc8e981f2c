package engine

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Command is one I/O command as the caller states it, and its result. The caller does not touch it while Do runs.
type Command struct {
	Op         nvme.Opcode
	FUA        bool // Write: durable when it completes; Read: from the medium
	Deallocate bool // Write Zeroes: the blocks may be deallocated
	NSID       uint32
	SLBA       uint64       // first logical block
	NLB        uint32       // logical blocks, 1 to 65536
	Data       nvme.IOVA    // dword aligned
	Len        uint32       // bytes at Data: NLB blocks for commands that transfer blocks
	Ranges     []nvme.Range // Dataset Management: 1 to 256 ranges to deallocate

	Err     error // nil, a *StatusError, or why the command did not complete
	Status  nvme.Status
	DW0     uint32        // of the completion
	Latency time.Duration // from posting to reaping, measured by the lane
	QID     uint16        // of the queue pair that it was posted on
	Steps   *Steps        // the caller's, for the command's steps if lanes trace (Config.Trace); nil: nobody asks

	tries uint8
	page  int8 // of the range list, -1 for none
}

// check is why a command is not valid. The length must agree with NLB: the controller transfers NLB blocks, whatever length the
// PRPs were built for.
func (e *Engine) check(c *Command) error {
	shift, ok := e.c.BlockShift(c.NSID)
	switch {
	case c.Op == nvme.IOFlush && c.NSID == 0xffffffff && e.c.Identify().VWC.FlushAll():
		return nil
	case !ok:
		return fmt.Errorf("%s: namespace %d is not one that can be used", c, c.NSID)
	}
	switch c.Op {
	case nvme.IOFlush:
		return nil
	case nvme.IORead, nvme.IOWrite, nvme.IOCompare:
		switch {
		case c.NLB == 0 || c.NLB > nvme.MaxNLB:
			return fmt.Errorf("%s: want 1 to %d blocks", c, nvme.MaxNLB)
		case uint64(c.Len) != uint64(c.NLB)<<shift:
			return fmt.Errorf("%s: %d bytes of data for blocks of %d bytes", c, c.Len, 1<<shift)
		case int64(c.Len) > e.maxTransfer:
			return fmt.Errorf("%s: %d bytes in one command, at most %d", c, c.Len, e.maxTransfer)
		case c.Data&3 != 0:
			return fmt.Errorf("%s: data at IOVA %#x is not dword aligned", c, uint64(c.Data))
		}
		return nil
	case nvme.IOWriteZeroes, nvme.IOVerify, nvme.IOWriteUncorr:
		if c.NLB == 0 || c.NLB > nvme.MaxNLB || c.Len != 0 {
			return fmt.Errorf("%s: want 1 to %d blocks and no data", c, nvme.MaxNLB)
		}
		return nil
	case nvme.IODSM:
		if len(c.Ranges) == 0 || len(c.Ranges) > nvme.MaxRanges || c.Len != 0 {
			return fmt.Errorf("%s: %d ranges, want 1 to %d and no other data", c, len(c.Ranges), nvme.MaxRanges)
		}
		return nil
	}
	return fmt.Errorf("%s: the engine does not carry this command", c)
}

// String names the command as errors do: "Write of 8 blocks at LBA 4096 of namespace 1".
func (c *Command) String() string {
	return nvme.Describe(c.Op, false, c.NSID, c.SLBA, c.NLB)
}

// fill writes the command to a work item that is zero, all but Tag and Timeout. The kernel makes PRPs of Iova and Len.
func (c *Command) fill(w *kernels.Work, ranges nvme.IOVA) {
	w.Opcode, w.Nsid = uint8(c.Op), c.NSID
	w.Iova, w.Len = uint64(c.Data), c.Len
	switch {
	case c.Op.HasLBA():
		w.Cdw10, w.Cdw11, w.Cdw12 = uint32(c.SLBA), uint32(c.SLBA>>32), c.NLB-1
		if c.FUA {
			w.Cdw12 |= nvme.CDW12FUA
		}
		if c.Deallocate && c.Op == nvme.IOWriteZeroes {
			w.Cdw12 |= nvme.CDW12DEAC
		}
	case c.Op == nvme.IODSM:
		w.Iova, w.Len = uint64(ranges), uint32(len(c.Ranges)*nvme.RangeSize)
		w.Cdw10, w.Cdw11 = uint32(len(c.Ranges)-1), nvme.CDW11AD
	}
}

// statusErr is the error of a completed command, nil for success.
func (c *Command) statusErr() error {
	if c.Status.OK() {
		return nil
	}
	return &nvme.StatusError{Opcode: c.Op, NSID: c.NSID, HasLBA: c.Op.HasLBA(), LBA: c.SLBA, Blocks: c.NLB, Status: c.Status}
}

// worthRetry says whether the same command may succeed if it is sent again: DNR is clear, and the status does not mean that the
// command itself is wrong. The first command has ended, its data has not changed, and its caller has not been told: so success
// the second time means what it would have meant the first time. That does not hold for commands that make data durable: see
// durable.go.
func worthRetry(s nvme.Status) bool {
	if s.DNR() {
		return false
	}
	switch s.SCT() {
	case nvme.SCTPath:
		return true
	case nvme.SCTMedia:
		return s.Is(nvme.StatusReadError) || s.Is(nvme.StatusWriteFault)
	case nvme.SCTGeneric:
		switch s.Code() {
		case nvme.StatusDataTransfer, nvme.StatusInternal, nvme.StatusAbortRequested, nvme.StatusSQDeleted, nvme.StatusNSNotReady,
			nvme.StatusInterrupted, nvme.StatusTransientTransport:
			return true
		}
	}
	return false
}
