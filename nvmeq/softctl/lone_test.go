package softctl

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// lone carries out a lone command of n blocks of 512 bytes.
func (h *host) lone(op uint8, slba uint64, n uint64, at uint64) bool {
	return h.c.Lone(1, controller.LoneCommand{Op: nvme.Opcode(op), NSID: 1, SLBA: slba, Blocks: uint32(n), Bytes: uint32(n * 512), Data: nvme.IOVA(at)})
}

// onEach runs a test on a block device, which is a loop device over file, and on an image file.
func onEach(t *testing.T, run func(t *testing.T, dev, file string)) {
	t.Run("block device", func(t *testing.T) {
		dev, file := newLoop(t, testSize)
		run(t, dev, file)
	})
	t.Run("image", func(t *testing.T) {
		file := newImage(t, testSize)
		run(t, file, file)
	})
}

// TestLone: lone reads and writes agree with a model, and are counted.
func TestLone(t *testing.T) { onEach(t, testLone) }

func testLone(t *testing.T, dev, file string) {
	h := newHostOn(t, dev, Options{}).enable()
	require.Positive(t, h.c.LoneMost())
	h.queue(1, 16)
	r := rand.New(rand.NewPCG(3, 4))
	want := make([]byte, testSize)
	const room = 256 << 10
	b, at := h.alloc(room)
	var reads, writes, moved uint64
	for range 300 {
		n := 1 + r.Uint64N(room/512)
		lba := r.Uint64N(testSize/512 - n)
		place := want[lba*512:][:n*512]
		if moved += n * 512; r.IntN(2) == 0 {
			random(r.Uint64(), b[:n*512])
			copy(place, b)
			require.True(t, h.lone(opWrite, lba, n, at))
			writes++
		} else {
			clear(b)
			require.True(t, h.lone(opRead, lba, n, at))
			require.True(t, bytes.Equal(place, b[:n*512]))
			reads++
		}
	}
	q := h.c.Counters()[1]
	require.Equal(t, map[uint8]uint64{opRead: reads, opWrite: writes}, q.ByOpcode)
	require.Equal(t, moved, q.BytesRead+q.BytesWritten)
	require.Equal(t, reads+writes, q.Commands)
	require.Zero(t, q.Completions)
	require.Zero(t, q.SQDoorbells)
	require.NoError(t, h.c.Close())
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// TestLoneRefuses: what a command of the queue is needed for is left to that, and has no effect.
func TestLoneRefuses(t *testing.T) { onEach(t, testLoneRefuses) }

func testLoneRefuses(t *testing.T, dev, file string) {
	h := newHostOn(t, dev, Options{}).enable()
	b, at := h.alloc(2 << 20)
	require.False(t, h.lone(opRead, 0, 8, at), "no queue")
	q := h.queue(1, 16)
	require.True(t, h.lone(opRead, 0, 8, at))
	refused := func(op uint8, slba, n, at uint64, why string) {
		t.Helper()
		random(1, b[:4096])
		was := bytes.Clone(b[:4096])
		require.False(t, h.lone(op, slba, n, at), why)
		require.Equal(t, was, b[:4096], why)
	}
	refused(opRead, testSize/512-7, 8, at, "beyond the end")
	refused(opRead, 1<<63, 8, at, "far beyond the end")
	refused(opRead, 0, 4096, at, "longer than MDTS")
	refused(opRead, 0, 8, 4096, "no such memory")
	refused(opRead, 0, 8, h.base+uint64(len(h.mem.b))-512, "memory that ends")
	if h.c.Direct() {
		refused(opRead, 0, 8, at+4, "memory that the device does not take")
	}
	require.False(t, h.c.Lone(1, controller.LoneCommand{Op: nvme.IORead, NSID: 2, Blocks: 8, Bytes: 4096, Data: nvme.IOVA(at)}), "no such namespace")
	require.False(t, h.c.Lone(0, controller.LoneCommand{Op: nvme.IORead, NSID: 1, Blocks: 8, Bytes: 4096, Data: nvme.IOVA(at)}), "the admin queue")
	require.False(t, h.c.Lone(uint16(len(h.c.sq)), controller.LoneCommand{Op: nvme.IORead, NSID: 1, Blocks: 8, Bytes: 4096, Data: nvme.IOVA(at)}), "no such queue")
	require.True(t, h.lone(opRead, 0, uint64(h.c.opt.MaxTransfer)/512, at), "as long as MDTS")

	hidden := newMemory(t, 4096)
	hidden.hidden = true
	h.c.dma.mover = piped{}
	a, err := h.c.Map(hidden, 0, 4096)
	require.NoError(t, err)
	refused(opRead, 0, 8, uint64(a), "memory that the CPU cannot address")

	rules := &Rules{}
	h.c.SetInjector(rules)
	refused(opRead, 0, 8, at, "an injector decides")
	h.c.SetInjector(nil)

	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0)) // Set Features: no volatile write cache
	refused(opWrite, 0, 8, at, "a write that is durable")
	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 1))
	require.True(t, h.lone(opWrite, 0, 8, at))

	h.c.sq[1].Load().mu.Lock()
	refused(opRead, 0, 8, at, "the queue is in use")
	h.c.sq[1].Load().mu.Unlock()

	require.NoError(t, os.Truncate(file, 4<<20))
	require.False(t, h.lone(opRead, testSize/512-8, 8, at), "the device answers EIO")
	if !h.c.Direct() {
		require.False(t, h.lone(opWrite, testSize/512-8, 8, at), "it would make the file longer")
	}
	require.Equal(t, unrecoveredRead, h.do(q, rw(opRead, 1, testSize/512-8, 8).prp(at, 0)).status()&^(statusMore|doNotRetry))
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 4<<20, st.Size())

	h.c.fail("as if")
	refused(opRead, 0, 8, at, "fatal")
	require.NoError(t, h.c.Reset())
	refused(opRead, 0, 8, at, "reset")
	if err := h.c.Close(); h.c.Direct() {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, media.ErrTruncated)
	}

	require.NoError(t, os.Truncate(file, testSize))
	second, _ := newLoop(t, testSize)
	for _, opt := range []Options{{NoLone: true}, {Latency: time.Millisecond}, {OutOfOrder: true}, {Recorder: media.NewRecorder()}, {Images: []string{second}}} {
		c, err := Open(dev, opt)
		require.NoError(t, err)
		require.Zero(t, c.LoneMost())
		require.NoError(t, c.Close())
	}
	ro := newHostOn(t, dev, Options{ReadOnly: true}).enable()
	ro.queue(1, 16)
	_, at = ro.alloc(4096)
	require.True(t, ro.lone(opRead, 0, 8, at))
	require.False(t, ro.lone(opWrite, 0, 8, at), "opened for reading")
	require.NoError(t, ro.c.Close())
}

// TestLoneDurable: of an image in RAM what is durable is a lone command, too, since there is no disk to wait for; elsewhere the queue carries it out.
func TestLoneDurable(t *testing.T) {
	for _, where := range []string{"/dev/shm", "/var/tmp"} {
		t.Run(where, func(t *testing.T) {
			t.Setenv("TMPDIR", where)
			h := newHost(t, Options{}).enable()
			inRAM := h.c.files[0].FlushesAtOnce()
			if where == "/dev/shm" && !inRAM {
				t.Skip("SKIPPED: /dev/shm is no tmpfs")
			}
			q := h.queue(1, 16)
			b, at := h.alloc(4096)
			write := controller.LoneCommand{Op: nvme.IOWrite, FUA: true, NSID: 1, SLBA: 8, Blocks: 8, Bytes: 4096, Data: nvme.IOVA(at)}
			flush := controller.LoneCommand{Op: nvme.IOFlush, NSID: 1}
			random(3, b)
			require.Equal(t, inRAM, h.c.Lone(1, write))
			require.Equal(t, inRAM, h.c.Lone(1, flush))
			if !inRAM {
				require.Zero(t, h.c.Counters()[1].Commands)
				return
			}
			got, err := os.ReadFile(h.path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, got[4096:8192]))
			n := h.c.Counters()[1]
			require.Equal(t, map[uint8]uint64{opWrite: 1, opFlush: 1}, n.ByOpcode)
			require.EqualValues(t, 4096, n.BytesWritten)
			require.Zero(t, n.BytesRead)
			require.False(t, h.c.Lone(1, controller.LoneCommand{Op: nvme.IOFlush, NSID: nsidAll}), "all namespaces")
			require.False(t, h.c.Lone(1, controller.LoneCommand{Op: nvme.IOWriteZeroes, NSID: 1, Blocks: 8}))

			h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0)) // Set Features: no volatile write cache
			require.True(t, h.lone(opWrite, 0, 8, at))
			require.False(t, h.c.Lone(1, flush))
			h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 1))

			// What was lost is said by each flush and each durable write from then on, by the queue, too.
			require.NoError(t, os.Truncate(h.path, 1<<20))
			require.False(t, h.c.Lone(1, flush))
			require.NoError(t, os.Truncate(h.path, testSize))
			require.False(t, h.c.Lone(1, flush))
			require.False(t, h.c.Lone(1, write))
			h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, 1))
			require.Error(t, h.c.Close())
		})
	}
}

// TestLoneIntoDevice: a lone read into memory that the CPU cannot address is a copy from the image's pinned pages. What is not pinned, what is not in one
// part of it, writes, and what the copy engine refuses is left to the queue.
func TestLoneIntoDevice(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}}
	r := newReader(t, p, Options{})
	read := func(off, n int64) bool {
		clear(r.m.b)
		did := r.lone(opRead, uint64(off/512), uint64(n/512), r.at)
		if did {
			require.True(t, bytes.Equal(r.want[off:off+n], r.m.b[:n]), "%d bytes at %d", n, off)
			require.Equal(t, make([]byte, 512), r.m.b[n:n+512], "behind %d bytes at %d", n, off)
		}
		return did
	}
	require.False(t, read(0, 4096), "nothing is pinned")
	r.pass()
	r.pass()
	r.pins(p, 2)
	before := r.c.Counters()[1]
	require.True(t, read(0, 4096))
	require.True(t, read(4096, 512))
	require.True(t, read(chunkSize-4096, 4096))
	require.True(t, read(chunkSize+512, 64<<10))
	after := r.c.Counters()[1]
	require.EqualValues(t, 4, after.Commands-before.Commands)
	require.EqualValues(t, 4096+512+4096+64<<10, after.BytesRead-before.BytesRead)
	require.Equal(t, before.Completions, after.Completions)
	require.False(t, read(chunkSize-512, 1024), "in two chunks")
	require.False(t, read(2*chunkSize, 4096), "in no chunk")
	require.False(t, r.lone(opWrite, 0, 8, r.at))

	a, err := r.c.Map(r.m, 8192, 4096) // memory that begins within its allocation
	require.NoError(t, err)
	clear(r.m.b)
	require.True(t, r.lone(opRead, 8, 8, uint64(a)))
	require.True(t, bytes.Equal(r.want[4096:8192], r.m.b[8192:12288]))
	require.Equal(t, make([]byte, 8192), r.m.b[:8192])

	r.c.opt.Mover = refusing{p}
	require.False(t, read(0, 4096), "the copy failed")
	r.c.opt.Mover = p
	require.NoError(t, os.Truncate(r.path, chunkSize))
	require.True(t, read(0, 4096))
	require.False(t, read(chunkSize+512, 4096), "truncated")
	require.ErrorIs(t, r.c.Close(), media.ErrTruncated)
}

// refusing is a mover whose copies fail.
type refusing struct{ *pinning }

func (refusing) Write(gpu.Memory, int64, []byte) error { return errors.New("the GPU refuses") }

// TestLoneOfPages: a lone read into host memory comes from pinned pages, and counts for pinning.
func TestLoneOfPages(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}}
	r := newReader(t, p, Options{})
	const n = 64 << 10
	b, at := r.alloc(n)
	read := func(off int64) {
		t.Helper()
		clear(b)
		require.True(t, r.lone(opRead, uint64(off/512), n/512, at))
		require.True(t, bytes.Equal(r.want[off:off+n], b), "at %d", off)
	}
	for range 2 {
		for off := int64(0); off < 2*chunkSize; off += n {
			read(off)
		}
	}
	r.pins(p, 2)
	d := &double{Medium: r.c.ns[0].medium}
	r.c.ns[0].medium = d
	read(chunkSize)
	require.Zero(t, d.reads)
	read(chunkSize - 4096) // from one chunk into the next
	require.Equal(t, 1, d.reads)
}

// TestLoneStops: unmapping, and resets, wait for lone commands: after them no memory changes.
func TestLoneStops(t *testing.T) { onEach(t, testLoneStops) }

func testLoneStops(t *testing.T, dev, file string) {
	require.NoError(t, os.WriteFile(file, random(5, make([]byte, testSize)), 0))
	h := newHostOn(t, dev, Options{}).enable()
	m := newMemory(t, 1<<20)
	for round := range 20 {
		h.used = 2 << 20
		h.queue(1, 16)
		a, err := h.c.Map(m, 0, m.Size())
		require.NoError(t, err)
		stop := make(chan struct{})
		begun := make(chan struct{}, 1)
		var all sync.WaitGroup
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if h.lone(opRead, 0, 1024, uint64(a)) {
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			}
		})
		<-begun
		if round%2 == 0 {
			require.NoError(t, h.c.Unmap(a))
		} else {
			require.NoError(t, h.c.Reset())
		}
		clear(m.b)
		time.Sleep(time.Millisecond)
		require.Equal(t, make([]byte, len(m.b)), m.b)
		close(stop)
		all.Wait()
		if round%2 == 0 {
			require.NoError(t, h.c.Reset())
		} else {
			require.NoError(t, h.c.Unmap(a))
		}
		h.enable()
	}
	require.NoError(t, h.c.Close())
}
