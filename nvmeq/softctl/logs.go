package softctl

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// Log page identifiers ([BASE] figure "Get Log Page").
const (
	logSupported = 0x00 // 2.0
	logError     = 0x01
	logSMART     = 0x02
	logFirmware  = 0x03
	logEffects   = 0x05
)

const (
	errorEntries   = 64
	errorEntrySize = 64
)

// errorEntry is what the error log keeps of a failed command.
type errorEntry struct {
	count  uint64
	sqid   uint16
	cid    uint16
	status Status
	lba    uint64
	nsid   uint32
}

// errorLog is the Error Information log: the newest errorEntries failures since the controller was made.
type errorLog struct {
	mu      sync.Mutex
	count   uint64
	entries [errorEntries]errorEntry // entry n is at n % errorEntries
	media   atomic.Uint64            // failures of the image
}

func (l *errorLog) add(sqid uint16, cmd *command, st Status) {
	e := errorEntry{sqid: sqid, cid: cmd.cid, status: st, nsid: cmd.nsid}
	if sqid != 0 {
		e.lba = cmd.slba()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	e.count = l.count
	l.entries[l.count%errorEntries] = e
}

// page writes the entries, newest first ([BASE] figure 206).
func (l *errorLog) page() []byte {
	b := make([]byte, errorEntries*errorEntrySize)
	le := binary.LittleEndian
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := uint64(0); i < errorEntries && i < l.count; i++ {
		e, p := l.entries[(l.count-i)%errorEntries], b[i*errorEntrySize:]
		le.PutUint64(p[0:], e.count)
		le.PutUint16(p[8:], e.sqid)
		le.PutUint16(p[10:], e.cid)
		le.PutUint16(p[12:], uint16(e.status|statusMore)<<1)
		le.PutUint16(p[14:], 0xffff) // parameter error location: not given
		le.PutUint64(p[16:], e.lba)
		le.PutUint32(p[24:], e.nsid)
	}
	return b
}

func (l *errorLog) total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// getLogPage is Get Log Page ([BASE] 5.16).
func (c *Controller) getLogPage(q *subQueue, cmd *command) (Status, uint32) {
	id := cmd.cdw10 & 0xff
	retain := cmd.cdw10>>15&1 != 0
	length := (int64(cmd.cdw11&0xffff)<<16 | int64(cmd.cdw10>>16)) * 4
	length += 4
	offset := uint64(cmd.cdw13)<<32 | uint64(cmd.cdw12)

	var b []byte
	switch {
	case id == logSupported && c.opt.Version >= Version20:
		b = make([]byte, 1024)
		for _, l := range []int{logSupported, logError, logSMART, logFirmware, logEffects} {
			b[4*l] = 1 // LSUPP
		}
	case id == logError:
		b = c.errors.page()
	case id == logSMART:
		if cmd.nsid != 0 && cmd.nsid != nsidAll { // LPA bit 0: not per namespace
			return invalidField, 0
		}
		b = c.smart()
	case id == logFirmware:
		b = make([]byte, 512)
		b[0] = 1 // AFI: slot 1 is active
		copy(b[8:16], c.paddedFirmware())
	case id == logEffects:
		b = c.effects()
	default:
		return invalidLogPage, 0
	}
	if offset&3 != 0 || offset > uint64(len(b)) || cmd.cdw14>>23&1 != 0 { // offsets are in bytes, not by index
		return invalidField, 0
	}
	if c.opt.MaxTransfer != Unlimited && length > int64(c.opt.MaxTransfer) {
		return invalidField, 0
	}
	// What is asked for beyond the page reads as zeroes.
	out := make([]byte, min(length, int64(len(b))+pageMin))
	copy(out, b[offset:])
	st := c.reply(q, cmd, out)
	if st == success && !retain {
		c.events.read(id)
	}
	return st, 0
}

func (c *Controller) paddedFirmware() string { return (c.opt.Firmware + "        ")[:8] }

// smart is the SMART / Health Information log ([BASE] figure 207). Counters that are 16 bytes wide there are 8 here.
func (c *Controller) smart() []byte {
	b := make([]byte, 512)
	le := binary.LittleEndian
	if c.features.tooHot() {
		b[0] |= 1 << 1
	}
	if c.opt.ReadOnly {
		b[0] |= 1 << 3 // the media is read-only
	}
	le.PutUint16(b[1:], temperature)
	b[3], b[4] = 100, 10 // available spare and its threshold, %
	units := func(bytes uint64) uint64 { return (bytes + 512_000 - 1) / 512_000 }
	le.PutUint64(b[32:], units(c.sum((*queueStats).allRead)))
	le.PutUint64(b[48:], units(c.sum((*queueStats).allWritten)))
	le.PutUint64(b[64:], c.sum((*queueStats).allReads))
	le.PutUint64(b[80:], c.sum((*queueStats).allWrites))
	le.PutUint64(b[112:], 1) // power cycles: it was opened once
	le.PutUint64(b[160:], c.errors.media.Load())
	le.PutUint64(b[176:], c.errors.total())
	return b
}

// effects is the Commands Supported and Effects log ([BASE] figure 211): admin opcodes, then I/O opcodes, a dword each.
func (c *Controller) effects() []byte {
	const supported, changesData = 1 << 0, 1 << 1
	b := make([]byte, 4096)
	for _, op := range []int{opDeleteSQ, opCreateSQ, opGetLogPage, opDeleteCQ, opCreateCQ, opIdentify, opAbort, opSetFeatures,
		opGetFeatures, opAsyncEvent} {
		b[4*op] = supported
	}
	for _, op := range []int{opFlush, opRead, opCompare, opVerify} {
		b[1024+4*op] = supported
	}
	for _, op := range []int{opWrite, opWriteZeroes} {
		b[1024+4*op] = supported | changesData
	}
	if c.canDeallocate() {
		b[1024+4*opDSM] = supported | changesData
	}
	return b
}
