package controller

import (
	"fmt"
	"math/bits"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Namespace is one active namespace. It does not change while the controller is open.
type Namespace struct {
	ID         uint32
	BlockSize  int64  // bytes of one logical block
	Blocks     uint64 // logical blocks
	ReadOnly   bool
	Identify   *nvme.IdentifyNamespace
	Descriptor nvme.NSDescriptors
	Unusable   error // why this host cannot use it, nil when it can
}

// identifyCmd executes Identify (Base §5.17) into a buffer of IdentifySize bytes.
func (c *Controller) identifyCmd(cns nvme.CNS, nsid uint32, csi nvme.CSI) ([]byte, error) {
	b := make([]byte, nvme.IdentifySize)
	_, err := c.adminRead(nvme.SQE{Opcode: nvme.AdminIdentify, NSID: nsid, CDW10: uint32(cns), CDW11: uint32(csi) << 24}, b)
	if err != nil {
		return nil, fmt.Errorf("identify CNS %02xh: %w", uint8(cns), err)
	}
	return b, nil
}

// identify reads the Identify data of the controller and of its namespaces.
func (c *Controller) identify() error {
	b, err := c.identifyCmd(nvme.CNSController, 0, 0)
	if err != nil {
		return err
	}
	if c.ident, err = nvme.DecodeIdentifyController(b); err != nil {
		return err
	}
	if s := c.ident.SQES; s.Min() > nvme.SQESize || s.Max() < nvme.SQESize {
		return fmt.Errorf("submission queue entries are %d to %d bytes; this host builds %d", s.Min(), s.Max(), nvme.SQESize)
	}
	if s := c.ident.CQES; s.Min() > nvme.CQESize || s.Max() < nvme.CQESize {
		return fmt.Errorf("completion queue entries are %d to %d bytes; this host reads %d", s.Min(), s.Max(), nvme.CQESize)
	}
	c.nvm = &nvme.NVMController{}
	if c.vs.AtLeast(2, 0) {
		switch b, err := c.identifyCmd(nvme.CNSCmdSetCtrl, 0, nvme.CSINVM); {
		case err == nil:
			if c.nvm, err = nvme.DecodeNVMController(b); err != nil {
				return err
			}
		case !nvme.Refused(err):
			return err
		}
	}
	ids, err := c.activeNamespaces()
	if err != nil {
		return err
	}
	for _, id := range ids {
		ns, err := c.identifyNamespace(id)
		if err != nil {
			return err
		}
		c.namespaces = append(c.namespaces, ns)
		if ns.Unusable == nil {
			c.setShift(ns)
		}
	}
	return nil
}

// setShift records the block size of a namespace.
func (c *Controller) setShift(ns *Namespace) {
	shift := uint8(bits.TrailingZeros64(uint64(ns.BlockSize)))
	if int(ns.ID) < len(c.shiftLow) {
		c.shiftLow[ns.ID] = shift
		return
	}
	if c.shiftHigh == nil {
		c.shiftHigh = map[uint32]uint8{}
	}
	c.shiftHigh[ns.ID] = shift
}

// BlockShift is log2 of a usable namespace's block size.
func (c *Controller) BlockShift(nsid uint32) (uint8, bool) {
	if int64(nsid) < int64(len(c.shiftLow)) {
		s := c.shiftLow[nsid]
		return s, s != 0
	}
	s, ok := c.shiftHigh[nsid]
	return s, ok
}

// maxNamespaces bounds the memory that a controller can make this host allocate.
const maxNamespaces = 4096

// activeNamespaces lists the NSIDs in use, by the active list or, before NVMe 1.1, by counting to NN.
func (c *Controller) activeNamespaces() ([]uint32, error) {
	var all []uint32
	for after := uint32(0); len(all) < maxNamespaces; {
		b, err := c.identifyCmd(nvme.CNSActiveList, after, 0)
		if err != nil {
			if len(all) == 0 && nvme.Refused(err) {
				break
			}
			return nil, err
		}
		ids, err := nvme.DecodeNSList(b)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 && ids[0] <= after {
			return nil, fmt.Errorf("the list of namespaces above %d begins with %d", after, ids[0])
		}
		all = append(all, ids...)
		if len(ids) < nvme.IdentifySize/4 {
			return all, nil
		}
		after = ids[len(ids)-1]
	}
	if len(all) > 0 {
		return nil, fmt.Errorf("more than %d active namespaces", maxNamespaces)
	}
	for id := uint32(1); id <= min(c.ident.NN, maxNamespaces); id++ {
		all = append(all, id)
	}
	return all, nil
}

// identifyNamespace reads the Identify data of one namespace.
func (c *Controller) identifyNamespace(id uint32) (*Namespace, error) {
	ns := &Namespace{ID: id}
	if c.vs.AtLeast(1, 3) {
		b, err := c.identifyCmd(nvme.CNSDescriptors, id, 0)
		if err == nil {
			ns.Descriptor, err = nvme.DecodeNSDescriptors(b)
			if err != nil {
				return nil, fmt.Errorf("namespace %d: %w", id, err)
			}
		} else if !nvme.Refused(err) {
			return nil, err
		}
	}
	if csi := ns.Descriptor.CSI; csi != nvme.CSINVM {
		ns.Identify = &nvme.IdentifyNamespace{}
		ns.Unusable = fmt.Errorf("the namespace uses the %v command set; only NVM is supported", csi)
		return ns, nil
	}
	b, err := c.identifyCmd(nvme.CNSNamespace, id, 0)
	if err != nil {
		return nil, err
	}
	n, err := nvme.DecodeIdentifyNamespace(b)
	if err != nil {
		return nil, err
	}
	ns.Identify, ns.Unusable, ns.ReadOnly = n, n.Usable(), n.WriteProtected()
	if ns.Unusable == nil {
		f, _ := n.Format()
		ns.BlockSize, ns.Blocks = f.BlockSize(), n.NSZE
	}
	return ns, nil
}

// Namespace is the active namespace with that NSID. It is an error if there is none, or if this host cannot use it.
func (c *Controller) Namespace(id uint32) (*Namespace, error) {
	for _, ns := range c.namespaces {
		if ns.ID == id {
			if ns.Unusable != nil {
				return nil, fmt.Errorf("%s: namespace %d: %w", c.t.Name(), id, ns.Unusable)
			}
			return ns, nil
		}
	}
	var have []uint32
	for _, ns := range c.namespaces {
		have = append(have, ns.ID)
	}
	if c.allocated(id) {
		return nil, fmt.Errorf("%s: namespace %d is not attached to this controller (CNTLID %d), which has %v: attach it there first (nvme attach-ns), or name one of those with nsid=",
			c.t.Name(), id, c.ident.CNTLID, have)
	}
	return nil, fmt.Errorf("%s: no active namespace %d; it has %v: name one of them with nsid=", c.t.Name(), id, have)
}

// allocated says whether the subsystem has a namespace, attached to this controller or not (Base §5.17.2.10).
func (c *Controller) allocated(id uint32) bool {
	if !c.ident.OACS.Namespaces() || id == 0 {
		return false
	}
	b, err := c.identifyCmd(nvme.CNSAllocatedList, id-1, 0)
	if err != nil {
		return false
	}
	ids, err := nvme.DecodeNSList(b)
	return err == nil && len(ids) > 0 && ids[0] == id
}
