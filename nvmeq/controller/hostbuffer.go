package controller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// hostBuffer is memory of the host that the controller has for itself (Base §8.9, Host Memory Buffer): a drive without DRAM of its own keeps there what it knows of where its blocks
// are, and reads more slowly without. Neither CPU nor kernels touch it while the controller is enabled. A reset takes it from the controller, which gets it again after that.
type hostBuffer struct {
	d     *DMA        // of the size, and then a page with the list of its one piece
	size  int64       // bytes
	given atomic.Bool // the controller uses it
}

// hostBufferEntry is the bytes of an entry of the list (Base figure "Host Memory Buffer Descriptor Entry"): address, pages, reserved.
const hostBufferEntry = 16

// openHostBuffer allocates what the controller asks for, Config.HostBuffer at most. Without it the controller works, so a lack of memory is only logged.
func (c *Controller) openHostBuffer() {
	want, least := c.ident.HostBuffer()
	n := min(want, c.cfg.HostBuffer) / c.mps * c.mps
	if want == 0 || c.cfg.HostBuffer == 0 {
		return
	}
	if err := c.allocHostBuffer(n, least); err != nil {
		c.log.Warn("the drive goes without memory of the host's for its tables, and may be slower", "device", c.t.Name(), "wants", want, "why", err.Error())
	}
}

func (c *Controller) allocHostBuffer(n, least int64) error {
	if n == 0 || n < least {
		return fmt.Errorf("it has a use for %d bytes at least, and may have %d", least, c.cfg.HostBuffer)
	}
	d, err := c.AllocDMA(c.cfg.Placement.Host, n+c.mps, c.mps)
	if err != nil {
		return err
	}
	if d.Host == nil || d.Mem.Reach().Owner != gpu.OwnerPages { // it outlives a GPU that fails
		return errors.Join(errors.New("host memory is not pages of the process here"), d.Close())
	}
	list := d.Host[n : n+hostBufferEntry]
	binary.LittleEndian.PutUint64(list[0:], uint64(d.IOVA))
	binary.LittleEndian.PutUint32(list[8:], uint32(n/c.mps))
	c.hostBuffer = &hostBuffer{d: d, size: n}
	return nil
}

// giveHostBuffer follows every enable (Base §5.27.1.10). A controller that refuses goes without.
func (c *Controller) giveHostBuffer() error {
	b := c.hostBuffer
	if b == nil {
		return nil
	}
	list := uint64(b.d.IOVA) + uint64(b.size)
	_, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminSetFeatures, CDW10: uint32(nvme.FIDHostBuffer), CDW11: 1, CDW12: uint32(b.size / c.mps),
		CDW13: uint32(list), CDW14: uint32(list >> 32), CDW15: 1})
	b.given.Store(err == nil)
	if nvme.Refused(err) {
		c.log.Warn("the drive refuses the memory of the host's that it asked for", "device", c.t.Name(), "bytes", b.size, "why", err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("feature %02xh: %w", uint8(nvme.FIDHostBuffer), err)
	}
	return nil
}

// closeHostBuffer follows the disabling of the controller.
func (c *Controller) closeHostBuffer() error {
	if c.hostBuffer == nil {
		return nil
	}
	c.hostBuffer.given.Store(false)
	return c.hostBuffer.d.Close()
}

// HostBuffer is how many bytes of the host's memory the controller has for itself.
func (c *Controller) HostBuffer() int64 {
	if c.hostBuffer == nil || !c.hostBuffer.given.Load() {
		return 0
	}
	return c.hostBuffer.size
}
