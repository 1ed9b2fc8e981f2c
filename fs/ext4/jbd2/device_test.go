package jbd2

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// testDevice is a namespace in memory with a volatile write cache that can lose power and fail on demand.
type testDevice struct {
	lba int

	mu      sync.Mutex
	image   []byte  // what reads see
	durable []byte  // the medium as of the last flush
	pending []write // since the last flush, in order of arrival
	failAt  int     // protected by mu: the write with this countdown fails; 0 none
	log     []string
	record  bool
	writes  int
	cut     func(d *testDevice) // called, with mu held, before each flush and in the middle of each write
	cutRng  *rand.Rand          // protected by mu
	dead    bool
	refuse  func(r *blockdev.Request) error // protected by mu: why a request fails, with nothing done
}

type write struct {
	off  int64
	data []byte
}

var errInjected = errors.New("injected failure")

const (
	waitLong = 2 * time.Minute
	waitStep = time.Millisecond
)

func newTestDevice(size int64, lba int) *testDevice {
	return &testDevice{lba: lba, image: make([]byte, size), durable: make([]byte, size)}
}

func newTestDeviceFrom(image []byte, lba int) *testDevice {
	return &testDevice{lba: lba, image: append([]byte(nil), image...), durable: append([]byte(nil), image...)}
}

func loadTestDevice(path string) (*testDevice, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return newTestDeviceFrom(b, 512), nil
}

type testBuffer struct{ b []byte }

func (b *testBuffer) Bytes() []byte { return b.b }
func (b *testBuffer) Len() int      { return len(b.b) }
func (b *testBuffer) Slice(off, n int) blockdev.Slice {
	if off < 0 || n < 0 || off+n > len(b.b) {
		panic("slice outside of the buffer")
	}
	return blockdev.Slice{Buf: b, Off: off, N: n}
}
func (b *testBuffer) Release() {
	if b.b == nil {
		panic("released twice")
	}
	blockdev.ReleaseTestMemory(b.b)
	b.b = nil
}

func (d *testDevice) Info() blockdev.Info {
	return blockdev.Info{Name: "test", BlockSize: blockdev.Bytes(d.lba), Blocks: blockdev.Blocks(len(d.image) / d.lba),
		MaxTransfer: 128 << 10, Queues: 2, Depth: 32, VolatileCache: true}
}

func (d *testDevice) Alloc(n int, _ ...blockdev.Use) (blockdev.Buffer, error) {
	return &testBuffer{blockdev.TestMemory(n)}, nil
}

func (d *testDevice) Do(reqs ...*blockdev.Request) error {
	var first error
	// No defined order.
	for _, i := range rand.Perm(len(reqs)) {
		r := reqs[i]
		r.Err = d.one(r)
		if first == nil {
			first = r.Err
		}
	}
	return first
}

func (d *testDevice) one(r *blockdev.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return errInjected
	}
	if d.refuse != nil {
		if err := d.refuse(r); err != nil {
			return err
		}
	}
	switch r.Op {
	case blockdev.OpFlush:
		if d.cut != nil {
			d.cut(d)
		}
		if d.record {
			d.log = append(d.log, "flush")
		}
		d.flushLocked()
		return nil
	case blockdev.OpRead, blockdev.OpWrite:
	default:
		return fmt.Errorf("operation %d", r.Op)
	}
	off := int64(r.Off)
	n := 0
	for _, s := range r.Bufs {
		n += s.N
		if s.N%d.lba != 0 || s.N == 0 {
			return fmt.Errorf("slice of %d bytes", s.N)
		}
	}
	if off < 0 || off%int64(d.lba) != 0 || off+int64(n) > int64(len(d.image)) || n == 0 {
		return fmt.Errorf("%d bytes at %d: out of range", n, off)
	}
	if r.Op == blockdev.OpRead {
		for _, s := range r.Bufs {
			off += int64(copy(s.Bytes(), d.image[off:]))
		}
		return nil
	}
	d.writes++
	if d.failAt > 0 {
		if d.failAt--; d.failAt == 0 {
			return errInjected
		}
	}
	var data []byte
	for _, s := range r.Bufs {
		data = append(data, s.Bytes()...)
	}
	if d.record {
		d.log = append(d.log, fmt.Sprintf("write %d+%d fua=%v", off, n, r.FUA))
	}
	copy(d.image[off:], data)
	d.pending = append(d.pending, write{off, data})
	if d.cut != nil {
		d.cut(d)
	}
	if r.FUA {
		// Durable by itself; what else is pending stays volatile.
		copy(d.durable[off:], data)
	}
	return nil
}

func (d *testDevice) flushLocked() {
	for _, w := range d.pending {
		copy(d.durable[w.off:], w.data)
	}
	d.pending = nil
}

// crashLocked is a medium as a power cut could leave it now: what was flushed, and any part of what was not, in units of
// one LBA.
func (d *testDevice) crashLocked(rng *rand.Rand) []byte {
	img := append([]byte(nil), d.durable...)
	lose := rng.Float64()
	pend := append([]write(nil), d.pending...)
	if rng.IntN(2) == 0 {
		rng.Shuffle(len(pend), func(i, j int) { pend[i], pend[j] = pend[j], pend[i] })
	}
	for _, w := range pend {
		for o := 0; o < len(w.data); o += d.lba {
			if rng.Float64() >= lose {
				copy(img[w.off+int64(o):], w.data[o:o+d.lba])
			}
		}
	}
	return img
}

func (d *testDevice) setCut(f func(d *testDevice)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = f
}

func (d *testDevice) setRefuse(f func(r *blockdev.Request) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = f
}

func (d *testDevice) cutSeed() uint64 { return d.cutRng.Uint64() }

func (d *testDevice) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return d.one(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}
func (d *testDevice) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return d.one(&blockdev.Request{Op: blockdev.OpWrite, Off: off, Bufs: bufs, FUA: fua})
}
func (d *testDevice) Flush() error                            { return d.one(&blockdev.Request{Op: blockdev.OpFlush}) }
func (d *testDevice) Discard(off, n blockdev.Bytes) error     { return nil }
func (d *testDevice) WriteZeroes(off, n blockdev.Bytes) error { return errors.New("not here") }
func (d *testDevice) Close() error                            { return nil }
