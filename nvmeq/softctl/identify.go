package softctl

import (
	"encoding/binary"
	"fmt"
)

const identifySize = 4096

// Values of CNS, Controller or Namespace Structure ([BASE] 5.17).
const (
	cnsNamespace            = 0x00
	cnsController           = 0x01
	cnsActive               = 0x02
	cnsDescriptors          = 0x03
	cnsCommandSetNamespace  = 0x05 // from here to 08: 2.0
	cnsCommandSetController = 0x06
	cnsCommandSetActive     = 0x07
	cnsIndependentNamespace = 0x08
	cnsAllocated            = 0x10
	cnsAllocatedNamespace   = 0x11
	cnsControllers          = 0x13
	cnsCommandSets          = 0x1c // 2.0
)

const controllerID = 1

// identify is Identify. Command set 0, NVM, is the only one.
func (c *Controller) identify(q *subQueue, cmd *command) (Status, uint32) {
	var b [identifySize]byte
	st := invalidField
	switch cns := cmd.cdw10 & 0xff; {
	case cns == cnsNamespace || cns == cnsAllocatedNamespace:
		st = c.identifyNamespace(b[:], cmd.nsid)
	case cns == cnsController:
		c.identifyController(b[:])
		st = success
	case cns == cnsActive || cns == cnsAllocated:
		st = c.identifyActive(b[:], cmd.nsid)
	case cns == cnsDescriptors:
		st = c.identifyDescriptors(b[:], cmd.nsid)
	case cns == cnsControllers:
		if cmd.cdw10>>16 <= controllerID {
			binary.LittleEndian.PutUint16(b[0:], 1)
			binary.LittleEndian.PutUint16(b[2:], controllerID)
		}
		st = success
	case c.opt.Version < Version20:
	case cns == cnsIndependentNamespace:
		st = c.identifyIndependent(b[:], cmd.nsid)
	case cns == cnsCommandSets:
		if cntid := cmd.cdw10 >> 16; cntid == controllerID || cntid == 0xffff {
			binary.LittleEndian.PutUint64(b[0:], 1) // combination 0: NVM
			st = success
		}
	case cmd.cdw11>>24 != 0: // CSI
	case cns == cnsCommandSetNamespace:
		if _, ok := c.namespace(cmd.nsid); !ok {
			st = invalidNamespace
		} else {
			st = success // no protection information, no storage tags
		}
	case cns == cnsCommandSetController:
		b[0] = c.opt.mdts() // VSL; the other limits are none
		st = success
	case cns == cnsCommandSetActive:
		st = c.identifyActive(b[:], cmd.nsid)
	}
	if st == success {
		st = c.reply(q, cmd, b[:])
	}
	return st, 0
}

// identifyNamespace is the NVM command set's Identify Namespace data structure ([NVM] 4.1.5.1).
func (c *Controller) identifyNamespace(b []byte, nsid uint32) Status {
	ns, ok := c.namespace(nsid)
	if !ok { // the broadcast value included: there is no namespace management
		return invalidNamespace
	}
	le := binary.LittleEndian
	le.PutUint64(b[0:], ns.blocks)  // NSZE
	le.PutUint64(b[8:], ns.blocks)  // NCAP
	le.PutUint64(b[16:], ns.used()) // NUSE
	b[24] = 1<<4 | 1                // NSFEAT: OPTPERF; thin, so NUSE may be less than NCAP
	// One LBA format (NLBAF, FLBAS 0), no metadata, no protection information.
	if c.zeroesFreed() {
		b[33] = 1 // DLFEAT: deallocated blocks read as zeroes
	}
	if n := ns.image.ViewSize(); n > 0 && ns.base%n == 0 {
		le.PutUint16(b[46:], uint16(n>>ns.shift)) // NOIOB: what one copy can read
	}
	total := uint64(ns.size())
	le.PutUint64(b[48:], total) // NVMCAP, low half
	// Preferred write and deallocate sizes: a page of the image's cache. 0's based.
	for _, off := range []int{64, 66, 68, 70} {
		le.PutUint16(b[off:], uint16(4096>>ns.shift-1))
	}
	if c.opt.MaxTransfer != Unlimited {
		le.PutUint16(b[72:], uint16(min(c.opt.MaxTransfer>>ns.shift, 1<<16)-1)) // NOWS
	}
	if c.opt.ReadOnly {
		b[99] = 1 // NSATTR: write protected
	}
	copy(b[104:], ns.nguid[:])
	le.PutUint32(b[128:], uint32(ns.shift)<<16) // LBAF0: LBADS
	return success
}

// identifyController is the Identify Controller data structure ([BASE] figure 275).
func (c *Controller) identifyController(b []byte) {
	le := binary.LittleEndian
	text := func(off, n int, s string) { copy(b[off:off+n], fmt.Sprintf("%-*s", n, s)) }
	// VID and SSVID stay 0: no vendor.
	text(4, 20, c.opt.Serial)
	text(24, 40, c.opt.Model)
	text(64, 8, c.opt.Firmware)
	b[77] = c.opt.mdts()
	le.PutUint16(b[78:], controllerID)
	le.PutUint32(b[80:], uint32(c.opt.Version))
	le.PutUint32(b[84:], 1_000_000)                           // RTD3R, µs
	le.PutUint32(b[88:], 60_000_000)                          // RTD3E: a shutdown flushes
	b[111] = 1                                                // CNTRLTYPE: I/O controller
	b[258] = 3                                                // ACL: 4 aborts
	b[259] = asyncEventLimit - 1                              // AERL
	b[260] = 1<<1 | 1                                         // FRMW: one slot, read only
	b[261] = 1<<2 | 1<<1                                      // LPA: long logs with offsets; effects log
	b[262] = errorEntries - 1                                 // ELPE
	b[263] = 0                                                // NPSS: one power state
	le.PutUint16(b[266:], 343)                                // WCTEMP, K
	le.PutUint16(b[268:], 353)                                // CCTEMP
	le.PutUint32(b[272:], uint32(c.opt.HostBuffer/4096))      // HMPRE
	le.PutUint32(b[276:], uint32(c.opt.HostBufferLeast/4096)) // HMMIN
	b[512] = sqes<<4 | sqes
	b[513] = cqes<<4 | cqes
	le.PutUint16(b[514:], uint16(min(c.opt.Depth, 65535))) // MAXCMD
	le.PutUint32(b[516:], uint32(len(c.ns)))               // NN
	oncs := uint16(1<<0 | 1<<3 | 1<<4 | 1<<7)              // Compare, Write Zeroes, Save and Select fields, Verify
	if c.canDeallocate() {
		oncs |= 1 << 2 // Dataset Management
	}
	le.PutUint16(b[520:], oncs)
	b[525] = 3 << 1 // VWC: Flush takes the broadcast NSID
	if !c.opt.NoWriteCache {
		b[525] |= 1
	}
	// AWUN, AWUPF 0: one block. SGLS 0: PRPs only.
	if c.opt.Version >= Version20 {
		le.PutUint32(b[540:], uint32(len(c.ns))) // MNAN
	}
	copy(b[768:1024], fmt.Sprintf("nqn.2014-08.org.nvmexpress:uuid:%s", formatUUID(c.ns[0].uuid)))
	le.PutUint16(b[2048:], 2500) // PSD0: 25 W
}

// identifyActive lists the NSIDs greater than nsid.
func (c *Controller) identifyActive(b []byte, nsid uint32) Status {
	if nsid >= nsidAll-1 {
		return invalidNamespace
	}
	for i := 0; i < len(b)/4 && uint64(nsid)+uint64(i) < uint64(len(c.ns)); i++ {
		binary.LittleEndian.PutUint32(b[4*i:], nsid+uint32(i)+1)
	}
	return success
}

// identifyDescriptors is the Namespace Identification Descriptor list ([BASE] figure 277).
func (c *Controller) identifyDescriptors(b []byte, nsid uint32) Status {
	ns, ok := c.namespace(nsid)
	if !ok {
		return invalidNamespace
	}
	add := func(kind byte, id []byte) {
		b[0], b[1] = kind, byte(len(id))
		copy(b[4:], id)
		b = b[4+len(id):]
	}
	add(2, ns.nguid[:])
	add(3, ns.uuid[:])
	if c.opt.Version >= Version20 {
		add(4, []byte{0}) // CSI: NVM
	}
	return success
}

// identifyIndependent is the I/O Command Set Independent Identify Namespace data structure ([BASE] figure 280).
func (c *Controller) identifyIndependent(b []byte, nsid uint32) Status {
	if _, ok := c.namespace(nsid); !ok {
		return invalidNamespace
	}
	if c.opt.ReadOnly {
		b[5] = 1 // NSATTR
	}
	b[14] = 1 // NSTAT: ready
	return success
}

func formatUUID(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
