package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Prove shows by real I/O that the memory of the controller's placement is where it should be, and that doorbells arrive: a
// mapping can succeed and lead elsewhere. It makes a lane of its own, writes nothing to the medium, and leaves nothing behind.
//
//  1. the runtime is asked for each kind of memory; what it gives must be of that kind
//  2. the device fills data memory with a pattern           the CPU's view, where there is one, must show it
//  3. the controller compares its block 0 with the memory   and must find them different: it sees what the device wrote
//  4. a kernel reads the memory, so that it is in the device's caches
//     a lane reads block 0 into the memory                  device, kernel and CPU must see what the same read gave in host memory
//  5. the controller compares again                         and must find them the same
//  6. the queues are read by the device                     the command is there, a completion too, and the CPU sees the same
//
// Steps 2 to 5 are done with two patterns, for the block may be one of them. 3 and 5 need the Compare command.
func Prove(c *controller.Controller, ec Config, nsid uint32) (err error) {
	shift, ok := c.BlockShift(nsid)
	if !ok {
		return fmt.Errorf("namespace %d is not one that can be used", nsid)
	}
	ec.Lanes, ec.CPULanes, ec.Retries = 1, 0, -1
	if ec.Timeout == 0 {
		ec.Timeout = proofTimeout
	}
	e, err := New(c, ec)
	if err != nil {
		return &Refused{err}
	}
	defer func() {
		if left := e.Close(); left != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errLeft, left))
		}
	}()
	p := &proof{c: c, e: e, rt: c.Runtime(), nsid: nsid, n: 1 << shift}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.open(); err != nil {
		return &Refused{err}
	}
	if err := p.command(nvme.IORead, p.ref); err != nil {
		return fmt.Errorf("reading block 0 into host memory: %w", err)
	}
	for _, pattern := range []byte{0xa5, 0x5a} {
		if err := p.round(pattern); err != nil {
			return err
		}
	}
	return p.queues()
}

// Refused is the error of a proof that could not begin: the machine does not give the memory, or the way to the doorbells, and says so. Any
// other error of a proof is of what it gave, and does not work.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }

// errLeft is wrapped by the error of a proof whose lane could not be removed.
var errLeft = errors.New("the proof's lane is left")

// proofTimeout is for a command of a proof: shorter than others, since a mount waits for it.
const proofTimeout = 10 * time.Second

// proof is one Prove under way.
type proof struct {
	c    *controller.Controller
	e    *Engine
	rt   gpu.Runtime
	nsid uint32
	n    int64 // bytes of a block

	data   *controller.DMA // where the placement puts data
	ref    *controller.DMA // host memory: what block 0 really has
	stage  gpu.Memory      // host memory into which the device copies what it sees
	stream gpu.Stream
	sum    kernelSum
}

func (p *proof) open() (err error) {
	page := max(controller.PageSize, p.c.PageSize())
	if p.data, err = p.c.AllocDMA(p.c.Placement().Data, p.n, page); err != nil {
		return err
	}
	if p.ref, err = p.c.AllocDMA(p.c.Placement().Host, p.n, page); err != nil {
		return err
	}
	size := max(p.data.Size, p.e.sq.Size, p.e.cq.Size)
	if err = p.c.Quiesced(func() (err error) { p.stage, err = p.rt.Alloc(gpu.HostMapped, size); return err }); err != nil {
		return err
	}
	s, err := p.rt.NewStream()
	if err != nil {
		return err
	}
	p.stream = bounded.Stream(p.rt, s)
	return p.c.Quiesced(func() error { return p.sum.open(p.rt, p.e.module, p.stream) })
}

func (p *proof) close() error {
	var errs []error
	if p.stream != nil {
		errs = append(errs, p.stream.Close())
	}
	errs = append(errs, p.c.Quiesced(p.sum.close))
	if p.stage != nil {
		errs = append(errs, p.c.Quiesced(p.stage.Close))
	}
	return errors.Join(append(errs, p.ref.Close(), p.data.Close())...)
}

// command carries out a command on block 0.
func (p *proof) command(op nvme.Opcode, d *controller.DMA) error {
	return p.e.Do(0, []Command{{Op: op, NSID: p.nsid, NLB: 1, Data: d.IOVA, Len: uint32(p.n)}})
}

// seen is what the device sees of memory that the controller reaches.
func (p *proof) seen(d *controller.DMA, n int64) ([]byte, error) {
	if err := copyAndWait(p.stream, p.stage.Addr(), d.Addr, n); err != nil {
		return nil, err
	}
	return p.stage.Host()[:n], nil
}

// agree compares the device's view with the CPU's, and both with what should be there, unless that is nil.
func (p *proof) agree(what string, d *controller.DMA, n int64, want []byte) ([]byte, error) {
	got, err := p.seen(d, n)
	if err != nil {
		return nil, err
	}
	if want != nil && !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%s: commands succeed, and yet the device does not see the bytes in its memory: the controller's DMA leads elsewhere, to host memory most likely", what)
	}
	if d.Host != nil && !bytes.Equal(got, d.Host[:n]) {
		return nil, fmt.Errorf("%s: the CPU sees other bytes in it than the device: one of them has other memory, in the host most likely", what)
	}
	return got, nil
}

// round is steps 2 to 5.
func (p *proof) round(pattern byte) error {
	what := fmt.Sprintf("data in %v memory of %s", p.data.Mem.Kind(), p.rt.Name())
	want := p.ref.Host[:p.n]
	filled := bytes.Repeat([]byte{pattern}, int(p.n))
	if err := p.stream.Fill(p.data.Addr, pattern, p.n); err != nil {
		return err
	}
	if _, err := p.agree(what, p.data, p.n, filled); err != nil {
		return err
	}
	if err := p.compare(what, bytes.Equal(filled, want)); err != nil {
		return err
	}
	if _, err := p.sum.of(p.data.Addr, p.n); err != nil {
		return err
	}
	if err := p.command(nvme.IORead, p.data); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, err := p.agree(what, p.data, p.n, want); err != nil {
		return err
	}
	if sum, err := p.sum.of(p.data.Addr, p.n); err != nil {
		return err
	} else if sum != sumOf(want) {
		return fmt.Errorf("%s: a kernel does not see what the controller wrote, while the copy engine does: the device's caches keep what was there before", what)
	}
	return p.compare(what, true)
}

// compare has the controller compare the data with its block, if it can.
func (p *proof) compare(what string, same bool) error {
	if !p.c.Identify().ONCS.Compare() {
		return nil
	}
	err := p.command(nvme.IOCompare, p.data)
	var status *nvme.StatusError
	switch differs := errors.As(err, &status) && status.Status.Is(nvme.StatusCompareFailure); {
	case err != nil && !differs:
		return fmt.Errorf("%s: %w", what, err)
	case differs == same:
		return fmt.Errorf("%s: the controller reads other bytes from it than the device has there: its DMA leads elsewhere, to host memory most likely", what)
	}
	return nil
}

// queues is step 6.
func (p *proof) queues() error {
	place := p.c.Placement()
	sq, err := p.agree(fmt.Sprintf("submission queue in %v memory of %s", place.SQ, p.rt.Name()), p.e.sq, p.e.sq.Size, nil)
	if err != nil {
		return err
	}
	found := false
	for e := range slices.Chunk(sq, nvme.SQESize) {
		sqe, err := nvme.DecodeSQE(e)
		found = found || err == nil && sqe.PRP1 == p.data.IOVA
	}
	if !found {
		return fmt.Errorf("submission queue in %v memory of %s: the device does not see the commands there that the controller carried out", place.SQ, p.rt.Name())
	}
	cq, err := p.agree(fmt.Sprintf("completion queue in %v memory of %s", place.CQ, p.rt.Name()), p.e.cq, p.e.cq.Size, nil)
	if err != nil {
		return err
	}
	found = false
	for e := range slices.Chunk(cq, nvme.CQESize) {
		cqe, err := nvme.DecodeCQE(e)
		found = found || err == nil && cqe.SQID == p.e.lanes[0].qid && cqe.Phase
	}
	if !found {
		return fmt.Errorf("completion queue in %v memory of %s: the device does not see the completions there that the CPU reaped", place.CQ, p.rt.Name())
	}
	return nil
}
