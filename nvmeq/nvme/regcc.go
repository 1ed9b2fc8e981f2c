package nvme

import (
	"fmt"
	"math/bits"
)

// CC is Controller Configuration (Base §3.1.3.5).
type CC uint32

// CC.CSS values: the command set of I/O queues.
const (
	CCCSSNVM = 0b000
	CCCSSAll = 0b110
)

// SHN is CC.SHN, the shutdown that the host asks for.
type SHN uint8

const (
	SHNNone   SHN = 0
	SHNNormal SHN = 1
)

// EN is whether the controller is enabled, SHN which shutdown was asked for.
func (c CC) EN() bool { return field(c, 0, 1) == 1 }
func (c CC) SHN() SHN { return SHN(field(c, 14, 2)) }

// IOSQES is the size of an I/O submission queue entry in bytes.
func (c CC) IOSQES() int { return 1 << field(c, 16, 4) }

// IOCQES is the size of an I/O completion queue entry in bytes.
func (c CC) IOCQES() int { return 1 << field(c, 20, 4) }

// set replaces the n bits from lo by v.
func (c CC) set(lo, n uint, v uint32) CC {
	mask := uint32(1<<n-1) << lo
	return CC(uint32(c)&^mask | v<<lo&mask)
}

// WithEN, WithCSS and WithSHN replace EN, CSS and SHN.
func (c CC) WithEN(on bool) CC {
	if on {
		return c.set(0, 1, 1)
	}
	return c.set(0, 1, 0)
}
func (c CC) WithCSS(v int) CC { return c.set(4, 3, uint32(v)) }

// WithMPS takes bytes: a power of two of at least 4096.
func (c CC) WithMPS(size int64) CC { return c.set(7, 4, uint32(bits.TrailingZeros64(uint64(size)))-12) }
func (c CC) WithSHN(s SHN) CC      { return c.set(14, 2, uint32(s)) }

// WithIOSQES takes bytes: a power of two.
func (c CC) WithIOSQES(size int) CC { return c.set(16, 4, uint32(bits.TrailingZeros(uint(size)))) }

// WithIOCQES takes bytes: a power of two.
func (c CC) WithIOCQES(size int) CC { return c.set(20, 4, uint32(bits.TrailingZeros(uint(size)))) }

// CSTS is Controller Status (Base §3.1.3.6).
type CSTS uint32

// SHST is CSTS.SHST, how far a shutdown has come.
type SHST uint8

// SHSTComplete says that the shutdown is complete.
const SHSTComplete SHST = 2

// Gone says that the register reads all ones: nothing answers at the address any more (Base §3.1.3 reserves bits that
// a living controller returns as zero).
func (c CSTS) Gone() bool { return c == 0xffffffff }

// RDY is whether the controller is ready for commands, CFS whether it reports a fatal error, SHST how far a shutdown has come.
func (c CSTS) RDY() bool  { return field(c, 0, 1) == 1 }
func (c CSTS) CFS() bool  { return field(c, 1, 1) == 1 }
func (c CSTS) SHST() SHST { return SHST(field(c, 2, 2)) }

func (c CSTS) String() string {
	if c.Gone() {
		return "CSTS all ones (device gone)"
	}
	return fmt.Sprintf("CSTS %#x (ready %t, fatal %t, shutdown %d)", uint32(c), c.RDY(), c.CFS(), c.SHST())
}
