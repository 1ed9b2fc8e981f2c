package softctl

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/memfd"
)

// Register offsets in BAR 0 ([BASE] 3.1.3, [PCIE] 3.1.2).
const (
	regCAP    = 0x00
	regVS     = 0x08
	regINTMS  = 0x0c
	regINTMC  = 0x10
	regCC     = 0x14
	regCSTS   = 0x1c
	regNSSR   = 0x20
	regAQA    = 0x24
	regASQ    = 0x28
	regACQ    = 0x30
	regCRTO   = 0x68
	doorbells = 0x1000
)

// CSTS bits ([BASE] 3.1.3.6).
const (
	cstsReady        = 1 << 0
	cstsFatal        = 1 << 1
	cstsShutdownMask = 3 << 2
	cstsShutdownBusy = 1 << 2
	cstsShutdownDone = 2 << 2
	cstsNSSRO        = 1 << 4
)

const (
	nssrMagic  = 0x4e564d65 // "NVMe"
	capTimeout = 5 * time.Second
	pageMin    = 4096 // CAP.MPSMIN 0
	mpsMax     = 4    // CAP.MPSMAX: 64 KiB
)

// configuration is CC.
type configuration uint32

func (c configuration) enabled() bool   { return c&1 != 0 }
func (c configuration) css() uint32     { return uint32(c>>4) & 7 }
func (c configuration) mps() uint32     { return uint32(c>>7) & 15 }
func (c configuration) ams() uint32     { return uint32(c>>11) & 7 }
func (c configuration) shn() uint32     { return uint32(c>>14) & 3 }
func (c configuration) iosqes() uint32  { return uint32(c>>16) & 15 }
func (c configuration) iocqes() uint32  { return uint32(c>>20) & 15 }
func (c configuration) pageSize() int64 { return pageMin << c.mps() }

// barMemory is BAR 0: the registers' values and the doorbells. It is a memfd, so that it can be shared with the
// process or device that rings. Nothing but doorbells is taken from it: stores that go around Write32 do not change registers.
type barMemory struct {
	mu   sync.RWMutex // held for reading by register accesses, for writing by close
	mem  []byte       // nil after close
	fd   int
	size int64
	step int64 // bytes between doorbells: 4 << CAP.DSTRD
}

func newBAR(queues, stride int) (*barMemory, error) {
	step := int64(4) << stride
	need := uint64(doorbells + 2*int64(queues+1)*step)
	size := max(int64(1)<<bits.Len64(need-1), 16<<10, int64(os.Getpagesize()))
	fd, err := memfd.New("nvme-bar0")
	if err != nil {
		return nil, fmt.Errorf("BAR memory: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("BAR memory of %d bytes: %w", size, err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("BAR memory of %d bytes: %w", size, err)
	}
	return &barMemory{mem: mem, fd: fd, size: size, step: step}, nil
}

// word is the register or doorbell at off. The caller has checked off and holds mu or knows the BAR to be open.
func (b *barMemory) word(off int64) *uint32 { return (*uint32)(unsafe.Pointer(&b.mem[off])) }

func (b *barMemory) load(off int64) uint32     { return atomic.LoadUint32(b.word(off)) }
func (b *barMemory) store(off int64, v uint32) { atomic.StoreUint32(b.word(off), v) }

func (b *barMemory) store64(off int64, v uint64) {
	b.store(off, uint32(v))
	b.store(off+4, uint32(v>>32))
}

func (b *barMemory) load64(off int64) uint64 {
	return uint64(b.load(off)) | uint64(b.load(off+4))<<32
}

func compareAndSwap(p *uint32, old, new uint32) bool { return atomic.CompareAndSwapUint32(p, old, new) }

// sqDoorbell is the offset of SQyTDBL, cqDoorbell that of CQyHDBL ([PCIE] 3.1.2.1).
func (b *barMemory) sqDoorbell(q uint16) int64 { return doorbells + 2*int64(q)*b.step }
func (b *barMemory) cqDoorbell(q uint16) int64 { return doorbells + (2*int64(q)+1)*b.step }

// doorbellAt says which queue's doorbell is at off, if any.
func (b *barMemory) doorbellAt(off int64) (q int64, cq, ok bool) {
	i := off - doorbells
	if i < 0 || i%b.step != 0 {
		return 0, false, false
	}
	i /= b.step
	return i / 2, i%2 == 1, true
}

// clearDoorbells zeroes those of queues 0 to n.
func (b *barMemory) clearDoorbells(n int) {
	for q := 0; q <= n; q++ {
		b.store(b.sqDoorbell(uint16(q)), 0)
		b.store(b.cqDoorbell(uint16(q)), 0)
	}
}

func (b *barMemory) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return nil
	}
	err := unix.Munmap(b.mem)
	b.mem = nil
	unix.Close(b.fd)
	return err
}

// ExportBAR gives the memfd behind BAR 0, which the receiver closes.
func (c *Controller) ExportBAR() (gpu.Export, error) {
	fd, err := unix.FcntlInt(uintptr(c.bar.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return gpu.Export{}, fmt.Errorf("exporting BAR 0: %w", err)
	}
	return gpu.Export{FD: fd, Size: c.bar.size, Kind: gpu.ExportMemFD}, nil
}
