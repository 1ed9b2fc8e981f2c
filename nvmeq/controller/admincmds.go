package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Admin commands: features and log pages. Those of queues are in queuepair.go, Identify in namespace.go.

// GetFeature reads a feature's value (Base §5.15). data, if any, receives the feature's structure.
func (c *Controller) GetFeature(fid nvme.FID, sel nvme.FeatureSelect, nsid uint32, data []byte) (uint32, error) {
	s := nvme.SQE{Opcode: nvme.AdminGetFeatures, NSID: nsid, CDW10: uint32(fid) | uint32(sel)<<8}
	cqe, err := c.adminFill(s, data)
	if err != nil {
		return 0, fmt.Errorf("feature %02xh: %w", uint8(fid), err)
	}
	return cqe.DW0, nil
}

// SetFeature sets a feature until the next reset (Base §5.27), and returns the completion's dword 0.
func (c *Controller) SetFeature(fid nvme.FID, nsid, value uint32) (uint32, error) {
	cqe, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminSetFeatures, NSID: nsid, CDW10: uint32(fid), CDW11: value})
	if err != nil {
		return 0, fmt.Errorf("feature %02xh: %w", uint8(fid), err)
	}
	return cqe.DW0, nil
}

func (c *Controller) adminFill(s nvme.SQE, data []byte) (nvme.CQE, error) {
	if len(data) > PageSize {
		return nvme.CQE{}, fmt.Errorf("nvme: %d bytes asked of one admin command, at most %d", len(data), PageSize)
	}
	if len(data) == 0 {
		return c.adminCmd(s)
	}
	return c.adminRead(s, data)
}

// GetLogPage fills b, a multiple of 4 bytes, from the start of a log page (Base §5.16).
func (c *Controller) GetLogPage(lid nvme.LID, nsid uint32, b []byte) error {
	if len(b) == 0 || len(b)%4 != 0 {
		return fmt.Errorf("nvme: log page of %d bytes, want a multiple of 4", len(b))
	}
	for off := 0; off < len(b); off += PageSize {
		part := b[off:min(off+PageSize, len(b))]
		dwords := uint32(len(part)/4 - 1)
		_, err := c.adminRead(nvme.SQE{Opcode: nvme.AdminGetLogPage, NSID: nsid,
			CDW10: uint32(lid) | dwords&0xffff<<16, CDW11: dwords >> 16, CDW12: uint32(off)}, part)
		if err != nil {
			return fmt.Errorf("log page %02xh: %w", uint8(lid), err)
		}
	}
	return nil
}

// SMART reads the SMART / health information log.
func (c *Controller) SMART() (*nvme.SMART, error) {
	b := make([]byte, nvme.SMARTSize)
	if err := c.GetLogPage(nvme.LIDSMART, 0xffffffff, b); err != nil {
		return nil, err
	}
	return nvme.DecodeSMART(b)
}

// ErrorLog reads up to n entries of the error log, newest first.
func (c *Controller) ErrorLog(n int) ([]nvme.ErrorEntry, error) {
	b := make([]byte, nvme.ErrorEntrySize*max(1, min(n, int(c.ident.ELPE)+1)))
	if err := c.GetLogPage(nvme.LIDError, 0xffffffff, b); err != nil {
		return nil, err
	}
	return nvme.DecodeErrorLog(b)
}

// WriteCache says whether the controller has a volatile write cache and whether it is on (Base §5.27.1.4).
func (c *Controller) WriteCache() (present, on bool, err error) {
	if !c.ident.VWC.Present() {
		return false, false, nil
	}
	v, err := c.GetFeature(nvme.FIDWriteCache, nvme.FeatureCurrent, 0, nil)
	return true, v&1 == 1, err
}

// negotiateQueues asks for n I/O queue pairs and returns how many can be used (Base §5.27.1.5).
func (c *Controller) negotiateQueues(n int) (int, error) {
	n = min(n, 0xffff)
	v, err := c.SetFeature(nvme.FIDNumQueues, 0, uint32(nvme.NewNumQueues(n, n)))
	if err != nil {
		return 0, err
	}
	given := min(nvme.NumQueues(v).SQs(), nvme.NumQueues(v).CQs(), n)
	// A controller may grant more queues than its BAR has doorbells for; those cannot be used.
	for given > 0 && c.stride.End(uint16(given)) > int64(len(c.t.BAR())) {
		given--
	}
	if given == 0 {
		return 0, fmt.Errorf("BAR 0 of %d bytes has no room for I/O doorbells %d bytes apart", len(c.t.BAR()), c.stride)
	}
	return given, nil
}

// enableEvents enables SMART warnings and the notices of namespaces and firmware that OAES offers (Base §5.27.1.8).
func (c *Controller) enableEvents() error {
	const smart, namespaces, firmware = 0x1f, 1 << 8, 1 << 9
	_, err := c.SetFeature(nvme.FIDAsyncEvent, 0, smart|c.ident.OAES&(namespaces|firmware))
	if nvme.Refused(err) {
		return nil // the feature is optional: the controller reports its default events
	}
	return err
}

// hostBehaviorSize is the bytes of the Host Behavior Support structure (Base §5.27.1.18); its first, ACRE, enables Command Retry Delays.
const hostBehaviorSize = 512

// enableRetryDelays has the controller say in a status how long the host is to wait before it tries again. It does not before it is told
// that the host knows of that.
func (c *Controller) enableRetryDelays() error {
	if c.ident.CRDT == [3]uint16{} {
		return nil
	}
	c.admin.Lock()
	defer c.admin.Unlock()
	s := nvme.SQE{Opcode: nvme.AdminSetFeatures, CDW10: uint32(nvme.FIDHostBehavior), PRP1: c.aq.dataIOVA()}
	if err := c.aq.usable(s.Opcode.Name(true)); err != nil {
		return err
	}
	data := c.aq.data()[:hostBehaviorSize]
	clear(data)
	data[0] = 1
	if _, err := c.aq.exec(s, c.cfg.Timeout); err != nil && !nvme.Refused(err) {
		return fmt.Errorf("feature %02xh: %w", uint8(nvme.FIDHostBehavior), err)
	}
	return nil
}
