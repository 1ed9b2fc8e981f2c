package softctl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// newLoop makes a block device over a file, and says which file.
func newLoop(t testing.TB, size int64, options ...string) (dev, file string) {
	t.Helper()
	file = newImage(t, size)
	dev, _ = looptest.Attach(t, file, options...)
	return dev, file
}

// ways are those by which blocks get to a block device and back: by the ring, but for the last of long ones, by the ring alone, and by calls that wait.
func ways(t *testing.T, run func(t *testing.T, opt Options)) {
	for _, w := range []struct {
		name     string
		off, low bool
	}{{"io_uring", false, true}, {"io_uring alone", false, false}, {"pread", true, false}} {
		t.Run(w.name, func(t *testing.T) {
			setPressure(t, w.low)
			run(t, Options{NoIOUring: w.off})
		})
	}
}

// needRing skips a test of the ring where there is none.
func (h *host) needRing() {
	if h.c.opt.NoIOUring {
		require.Contains(h.t, h.c.Path(), "calls that wait")
		return
	}
	if h.c.noRing.Load() != nil {
		h.t.Skipf("SKIPPED: %s", h.c.Path())
	}
	require.Equal(h.t, "O_DIRECT by io_uring", h.c.Path())
}

// collect steps until n completions have come.
func (h *host) collect(q *pair, n int) map[uint16]Status {
	h.t.Helper()
	got := map[uint16]Status{}
	for end := time.Now().Add(time.Minute); len(got) < n && time.Now().Before(end); {
		h.c.Step(q.id)
		for e, ok := h.poll(q); ok; e, ok = h.poll(q) {
			require.NotContains(h.t, got, e.cid(), "completed twice")
			got[e.cid()] = e.status() &^ statusMore
		}
	}
	require.Len(h.t, got, n)
	return got
}

// TestDirectModel: batches of reads, writes, zeroes and discards over a block device, of blocks of 512 and 4096 bytes, in memory that
// begins anywhere the specification allows, agree with a model, and are on the device after a flush.
func TestDirectModel(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		for _, bs := range []int{512, 4096} {
			t.Run(fmt.Sprint(bs), func(t *testing.T) {
				dev, file := newLoop(t, testSize, "-b", fmt.Sprint(bs))
				opt := opt
				h := newHostOn(t, dev, opt).enable()
				require.Equal(t, bs, h.c.opt.BlockSize, "the device's own blocks")
				q := h.queue(1, 64)
				h.needRing()
				r := rand.New(rand.NewPCG(7, uint64(bs)))
				want := make([]byte, testSize)
				const room = 256 << 10
				var bufs [][]byte
				var at []uint64
				for range 16 {
					b, a := h.alloc(room + 4096)
					bufs, at = append(bufs, b), append(at, a)
				}
				for round := range 50 {
					used := map[int]bool{} // blocks of this round
					type check struct {
						b    []byte
						want []byte
					}
					var checks []check
					n := 0
					for i := range 1 + r.IntN(16) {
						blocks := 1 + r.IntN(room/bs)
						lba := r.IntN(testSize/bs - blocks)
						free := true
						for k := range blocks {
							free = free && !used[lba+k]
						}
						if !free {
							continue
						}
						for k := range blocks {
							used[lba+k] = true
						}
						skip := 0
						if r.IntN(3) == 0 {
							skip = 4 * r.IntN(1024) // PRP1 may begin at any dword
						}
						b, place := bufs[i][skip:skip+blocks*bs], want[lba*bs:][:blocks*bs]
						p1, p2 := h.prps(at[i]+uint64(skip), blocks*bs)
						switch r.IntN(5) {
						case 0:
							h.put(q, rw(opWriteZeroes, 1, uint64(lba), uint32(blocks)))
							clear(place)
						case 1, 2:
							random(r.Uint64(), bufs[i])
							copy(place, b)
							c := rw(opWrite, 1, uint64(lba), uint32(blocks)).prp(p1, p2)
							if r.IntN(3) == 0 {
								c = c.dw(12, c[12]|1<<30) // FUA
							}
							h.put(q, c)
						default:
							clear(b)
							h.put(q, rw(opRead, 1, uint64(lba), uint32(blocks)).prp(p1, p2))
							checks = append(checks, check{b, place})
						}
						n++
					}
					h.ring(q)
					for cid, st := range h.collect(q, n) {
						require.Equal(t, success, st, "round %d, command %d", round, cid)
					}
					for _, c := range checks {
						require.True(t, bytes.Equal(c.want, c.b), "round %d", round)
					}
					h.used = h.listMark
				}
				h.expect(success, q, cmdOf(opFlush, 1))
				got, err := os.ReadFile(file)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got))
				require.NoError(t, h.c.Close())
			})
		}
	})
}

// prps gives the PRPs of n bytes at any IOVA that is a multiple of 4.
func (h *host) prps(at uint64, n int) (uint64, uint64) {
	if h.listMark == 0 {
		h.listMark = h.used
	}
	first := 4096 - int(at%4096)
	if n <= first {
		return at, 0
	}
	_, list := h.transfer(at&^4095, n-first+4096)
	return at, list
}

// TestDirectLeavesNoPages: what goes over a block device is not in the page cache.
func TestDirectLeavesNoPages(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		dev, _ := newLoop(t, testSize)
		h := newHostOn(t, dev, opt).enable()
		q := h.queue(1, 16)
		_, at := h.alloc(1 << 20)
		for i := range uint64(4) {
			h.put(q, h.move(opWrite, i*2048, 2048, at))
			h.ring(q)
			h.collect(q, 1)
			h.put(q, h.move(opRead, i*2048, 2048, at))
			h.put(q, h.move(opRead, i*2048, 8, at))
			h.ring(q)
			h.collect(q, 2)
		}
		f, err := os.Open(dev)
		require.NoError(t, err)
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, testSize, unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		defer unix.Munmap(b)
		there := make([]byte, testSize/4096)
		_, _, e := unix.Syscall(unix.SYS_MINCORE, addressOf(b), uintptr(len(b)), addressOf(there))
		require.Zero(t, e)
		n := 0
		for _, v := range there {
			n += int(v & 1)
		}
		require.Less(t, n, 64, "pages in the cache: what udev or losetup looks at, at most")
	})
}

// TestDirectStops: a queue that is deleted, a controller that is reset or unmapped memory, with commands under way: each is awaited, and the
// next queue works.
func TestDirectStops(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		dev, _ := newLoop(t, testSize)
		h := newHostOn(t, dev, opt).enable()
		_, at := h.alloc(1 << 20)
		m := newMemory(t, 1<<20)
		for round := range 30 {
			h.used = 2 << 20
			q := h.queue(1, 64)
			a, err := h.c.Map(m, 0, m.Size())
			require.NoError(t, err)
			for i := range 8 {
				to := at
				if i%2 == 0 {
					to = uint64(a)
				}
				h.put(q, h.move(opWrite, uint64(i)*2048, 1024, to))
			}
			h.ring(q)
			q1 := h.c.sq[1].Load()
			q1.mu.Lock()
			h.c.serve(q1, nil) // begun, and not awaited
			q1.mu.Unlock()
			require.NoError(t, h.c.Unmap(a))
			if q1.direct != nil {
				require.Zero(t, q1.direct.inFlight(), "a command is under way in memory that was unmapped")
			}
			h.put(q, h.move(opWrite, 0, 1024, at))
			h.ring(q)
			q1.mu.Lock()
			h.c.serve(q1, nil)
			q1.mu.Unlock()
			switch round % 3 {
			case 0:
				h.expect(success, h.admin, cmdOf(0x00, 0).dw(10, 1)) // Delete I/O Submission Queue
				h.expect(success, h.admin, cmdOf(0x04, 0).dw(10, 1))
			case 1:
				require.NoError(t, h.c.Reset())
				h.enable()
			default:
				h.c.Write32(0x14, 0)
				h.enable()
			}
			require.Nil(t, q1.direct, "the ring of a queue that is no more")
		}
		require.NoError(t, h.c.Close())
	})
}

// TestDirectRefuses: blocks that are smaller than the device's.
// TestDirectFails: memory is unmapped, and the controller reset, also when it has failed with commands that were begun and not submitted, and when the kernel has refused them.
func TestDirectFails(t *testing.T) {
	for _, refused := range []bool{false, true} {
		dev, _ := newLoop(t, testSize)
		h := newHostOn(t, dev, Options{}).enable()
		before := uringFDs(t)
		q := h.queue(1, 16)
		h.needRing()
		m := newMemory(t, 1<<20)
		a, err := h.c.Map(m, 0, m.Size())
		require.NoError(t, err)
		for i := range uint64(3) {
			h.put(q, rw(opRead, 1, 8*i, 8).prp(uint64(a)+4096*i, 0))
		}
		if refused {
			for fd := range uringFDs(t) {
				if !before[fd] {
					null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
					require.NoError(t, err)
					require.NoError(t, unix.Dup3(null, fd, unix.O_CLOEXEC))
					require.NoError(t, unix.Close(null))
				}
			}
		} else {
			h.c.SetInjector(fatalSecond{new(int)})
		}
		h.ring(q)
		h.c.Step(1)
		require.Equal(t, stateFatal, h.c.now())
		require.NotZero(t, h.c.sq[1].Load().direct.inFlight())
		done := make(chan error, 1)
		go func() { done <- h.c.Unmap(a) }()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			t.Fatal("it waits for commands that nobody submits")
		}
		h.c.SetInjector(nil)
		require.NoError(t, h.c.Reset())
		h.used = 2 << 20
		h.enable()
		q = h.queue(1, 16)
		require.Equal(t, refused, h.c.sq[1].Load().direct == nil)
		_, at := h.alloc(4096)
		require.Equal(t, success, h.do(q, rw(opRead, 1, 8, 8).prp(at, 0)).status())
		require.NoError(t, h.c.Close())
	}
}

// fatalSecond has the controller fail at the second command.
type fatalSecond struct{ n *int }

func (f fatalSecond) Command(Command) Verdict {
	*f.n++
	return Verdict{Fatal: *f.n == 2}
}

// uringFDs are the process's descriptors of rings.
func uringFDs(t *testing.T) map[int]bool {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	fds := map[int]bool{}
	for _, e := range all {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == "anon_inode:[io_uring]" {
			fd, err := strconv.Atoi(e.Name())
			require.NoError(t, err)
			fds[fd] = true
		}
	}
	return fds
}

// failsOnce is a mover of whose pipes the first to end has failed.
type failsOnce struct {
	piped
	ended *int
}

func (m failsOnce) Pipe() (copyengine.Pipe, error) {
	return &failedPipe{late{p: m.piped}, m.ended}, nil
}

type failedPipe struct {
	late
	ended *int
}

func (p *failedPipe) Close() error {
	if *p.ended++; *p.ended == 1 {
		return errors.New("a copy has failed")
	}
	return p.late.Close()
}

// TestDirectAgain: a command of a batch that is carried out again, because its copy has failed, may go by the ring then. It completes once.
func TestDirectAgain(t *testing.T) {
	setPressure(t, true)
	dev, file := newLoop(t, testSize)
	want := random(5, make([]byte, testSize))
	require.NoError(t, os.WriteFile(file, want, 0))
	ended := 0
	h := newHostOn(t, dev, Options{Mover: failsOnce{ended: &ended}, MaxTransfer: 2 << 20}).enable()
	q := h.queue(1, 32)
	h.needRing()
	m := newMemory(t, 4<<20)
	m.hidden = true
	a, err := h.c.Map(m, 0, m.Size())
	require.NoError(t, err)
	random(6, m.b)
	into := newMemory(t, 2<<20)
	to, err := h.c.Map(into, 0, into.Size())
	require.NoError(t, err)
	all := map[uint16]Status{}
	for range 3 { // long enough to be under way still
		p1, p2 := h.prps(uint64(to), 2<<20)
		all[h.put(q, rw(opRead, 1, 0, 4096).prp(p1, p2))] = success
	}
	p1, p2 := h.prps(uint64(a), 256<<10)
	all[h.put(q, rw(opWrite, 1, 8192, 512).prp(p1, p2))] = success
	h.ring(q)
	require.Equal(t, all, h.collect(q, len(all)))
	require.NotZero(t, ended, "it was in a batch")
	for range 100 {
		h.c.Step(1)
	}
	e, ok := h.poll(q)
	require.False(t, ok, "a further completion: %v", e)
	require.True(t, bytes.Equal(want[:2<<20], into.b))
	require.NoError(t, h.c.Close())
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	copy(want[8192*512:], m.b[:256<<10])
	require.True(t, bytes.Equal(want, got))
}

// TestDirectWithoutRing: when a ring has failed the queues that follow have none, and a queue's commands are carried out one at a time. It says why.
func TestDirectWithoutRing(t *testing.T) {
	dev, _ := newLoop(t, testSize)
	h := newHostOn(t, dev, Options{}).enable()
	h.queue(1, 16)
	h.needRing()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	h.queue(2, 16)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.Nil(t, h.c.sq[2].Load().direct)
	require.ErrorIs(t, *h.c.noRing.Load(), unix.EMFILE)
	require.Regexp(t, "^O_DIRECT by calls that wait: .*too many open files", h.c.Path())
	q := h.queue(3, 16)
	require.Nil(t, h.c.sq[3].Load().direct)
	b, at := h.alloc(8192)
	random(1, b[:4096])
	require.Equal(t, success, h.do(q, rw(opWrite, 1, 8, 8).prp(at, 0)).status())
	require.Equal(t, success, h.do(q, rw(opRead, 1, 8, 8).prp(at+4096, 0)).status())
	require.Equal(t, b[:4096], b[4096:8192])
	require.NoError(t, h.c.Close())
}

func TestDirectRefuses(t *testing.T) {
	dev, _ := newLoop(t, testSize, "-b", "4096")
	_, err := Open(dev, Options{BlockSize: 512})
	require.ErrorContains(t, err, "has logical blocks of 4096 bytes: blocks of 512 are too small")
	require.Equal(t, 4096, media.BlockSize(dev))
	c, err := Open(dev, Options{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestDirectErrors: a part of the device that answers EIO fails its commands, and no others; a durable write that failed is the last.
func TestDirectErrors(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		dev, file := newLoop(t, testSize)
		h := newHostOn(t, dev, opt).enable()
		q := h.queue(1, 32)
		_, at := h.alloc(64 << 10)
		require.NoError(t, os.Truncate(file, 4<<20)) // the loop device keeps its size: reads behind are EIO
		for i := range uint64(16) {
			h.put(q, h.move(opRead, i*1024, 8, at))
		}
		h.ring(q)
		failed := 0
		for _, st := range h.collect(q, 16) {
			if st != success {
				require.Equal(t, unrecoveredRead, st)
				failed++
			}
		}
		require.Equal(t, 8, failed)
		h.expect(success, q, rw(opWrite, 1, 0, 8).prp(at, 0))

		// Among others, commands whose memory is not there move nothing.
		list, lists := h.alloc(4096)
		clear(list)
		b, at := h.alloc(3 * 4096)
		random(7, b)
		was := bytes.Clone(b)
		on, err := os.ReadFile(file)
		require.NoError(t, err)
		want := map[uint16]Status{}
		for _, op := range []uint8{opRead, opWrite} {
			want[h.put(q, rw(op, 1, 8, 8).prp(1<<40, 0))] = dataTransferError
			want[h.put(q, rw(op, 1, 8, 16).prp(at, 1<<40))] = dataTransferError
			want[h.put(q, rw(op, 1, 8, 24).prp(at, lists))] = dataTransferError
			want[h.put(q, rw(op, 1, 8, 8).prp(at+2, 0))] = invalidPRPOffset
		}
		h.ring(q)
		got := h.collect(q, len(want))
		for id, st := range want {
			require.Equal(t, st, got[id]&^statusMore, "command %d", id)
		}
		require.Equal(t, was, b)
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, bytes.Equal(on, now))
		require.NoError(t, h.c.Failed())
	})
}

// TestDirectLast: of long commands that are begun together the last has ended when a step ends, if CPUs are idle; the others end by themselves, and one that fails
// fails alone.
func TestDirectLast(t *testing.T) {
	setPressure(t, true)
	dev, file := newLoop(t, testSize)
	want := random(9, make([]byte, testSize))
	require.NoError(t, os.WriteFile(file, want, 0))
	h := newHostOn(t, dev, Options{}).enable()
	q := h.queue(1, 32)
	h.needRing()
	b, at := h.alloc(4 << 20)
	for _, end := range []int64{testSize, 6 << 20} { // what the file has
		require.NoError(t, os.Truncate(file, end))
		clear(b)
		var last uint16
		for i := range 4 {
			p1, p2 := h.prps(at+uint64(i)<<20, 1<<20)
			last = h.put(q, rw(opRead, 1, uint64(2*i)<<11, 2048).prp(p1, p2))
		}
		h.ring(q)
		q1 := h.c.sq[1].Load()
		q1.mu.Lock()
		h.c.serve(q1, nil)
		q1.mu.Unlock()
		got := map[uint16]Status{}
		for e, ok := h.poll(q); ok; e, ok = h.poll(q) {
			got[e.cid()] = e.status() &^ statusMore
		}
		require.Contains(t, got, last)
		for cid, st := range h.collect(q, 4-len(got)) {
			got[cid] = st
		}
		require.Len(t, got, 4)
		for cid, st := range got {
			if cid == last && end < testSize {
				require.Equal(t, unrecoveredRead, st)
			} else {
				require.Equal(t, success, st)
			}
		}
		for i := range end >> 21 {
			require.True(t, bytes.Equal(want[i<<21:][:1<<20], b[i<<20:][:1<<20]))
		}
		h.used = h.listMark
	}
	require.NoError(t, h.c.Close())
}

// TestDirectHidden: memory that the CPU cannot address gets what a block device holds, by threads and by a copy engine.
func TestDirectHidden(t *testing.T) {
	for _, threads := range []int{0, 2} {
		ways(t, func(t *testing.T, opt Options) {
			opt.Mover, opt.Threads, opt.MaxTransfer = piped{}, threads, 2<<20
			dev, file := newLoop(t, testSize)
			want := random(5, make([]byte, testSize))
			require.NoError(t, os.WriteFile(file, want, 0))
			h := newHostOn(t, dev, opt).enable()
			q := h.queue(1, 32)
			if d := h.c.sq[1].Load().direct; d != nil {
				require.Len(t, d.stages, stagedSlots, "each may have a stage as large as a command")
			}
			m := newMemory(t, 8<<20)
			m.hidden = true
			a, err := h.c.Map(m, 0, m.Size())
			require.NoError(t, err)
			for range 3 {
				clear(m.b)
				for i := range 6 {
					p1, p2 := h.prps(uint64(a)+uint64(i)<<20, 1<<20)
					h.put(q, rw(opRead, 1, uint64(i)*2048, 2048).prp(p1, p2))
				}
				h.ring(q)
				for _, st := range h.collect(q, 6) {
					require.Equal(t, success, st)
				}
				require.True(t, bytes.Equal(want[:6<<20], m.b[:6<<20]))
				h.used = h.listMark
			}
			random(6, m.b[:2<<20])
			for i := range 2 {
				p1, p2 := h.prps(uint64(a)+uint64(i)<<20, 1<<20)
				h.put(q, rw(opWrite, 1, uint64(i)*2048, 2048).prp(p1, p2))
			}
			h.ring(q)
			h.collect(q, 2)
			h.expect(success, q, cmdOf(opFlush, 1))
			require.NoError(t, h.c.Close())
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(m.b[:2<<20], got[:2<<20]))
		})
	}
}

// TestDirectDeep: beside a device, whose commands have stages, those of host memory are under way as many at once as without.
func TestDirectDeep(t *testing.T) {
	dev, file := newLoop(t, testSize)
	want := random(5, make([]byte, testSize))
	require.NoError(t, os.WriteFile(file, want, 0o600))
	h := newHostOn(t, dev, Options{Mover: piped{}, MaxTransfer: 2 << 20}).enable()
	q := h.queue(1, 64)
	h.needRing()
	hidden := newMemory(t, 8<<20)
	hidden.hidden = true
	a, err := h.c.Map(hidden, 0, hidden.Size())
	require.NoError(t, err)
	b, at := h.alloc(32 << 12)
	q1, mark := h.c.sq[1].Load(), h.used
	for round := range 4 {
		clear(b)
		clear(hidden.b)
		var ids []uint16
		for i := range uint64(32) {
			ids = append(ids, h.put(q, rw(opRead, 1, 8*i, 8).prp(at+i<<12, 0)))
		}
		for i := range uint64(2 * round) { // and some of the device's
			p1, p2 := h.prps(uint64(a)+i<<20, 1<<20)
			ids = append(ids, h.put(q, rw(opRead, 1, 2048*i, 2048).prp(p1, p2)))
		}
		h.ring(q)
		q1.mu.Lock()
		h.c.serve(q1, nil)
		left := q1.head != q1.tail
		q1.mu.Unlock()
		require.False(t, left && round == 0, "one step begins all of them")
		for _, st := range h.collect(q, len(ids)) {
			require.Equal(t, success, st)
		}
		require.True(t, bytes.Equal(want[:32<<12], b[:32<<12]))
		require.True(t, bytes.Equal(want[:2*round<<20], hidden.b[:2*round<<20]))
		h.used = mark
	}
	require.NoError(t, h.c.Close())
}

// newFull is a host with a queue on a loop device that takes discards, over a file that has want.
func newFull(t *testing.T, opt Options, seed uint64) (h *host, q *pair, file string, want []byte) {
	t.Helper()
	dev, file := newLoop(t, testSize)
	want = random(seed, make([]byte, testSize))
	require.NoError(t, os.WriteFile(file, want, 0))
	h = newHostOn(t, dev, opt).enable()
	if !h.c.canDeallocate() {
		t.Skip("SKIPPED: this loop device takes no discards")
	}
	return h, h.queue(1, 16), file, want
}

// wantSparse closes the controller, and wants its file to have these bytes, and to take the room of so many blocks less than it is long.
func (h *host) wantSparse(file string, want []byte, blocks int64) {
	h.t.Helper()
	require.NoError(h.t, h.c.Close())
	got, err := os.ReadFile(file)
	require.NoError(h.t, err)
	require.True(h.t, bytes.Equal(want, got))
	var stat unix.Stat_t
	require.NoError(h.t, unix.Stat(file, &stat))
	require.LessOrEqual(h.t, stat.Blocks*512, testSize-blocks*512) // file systems keep a little
}

// TestDirectDiscard: Dataset Management reaches the device, range by range, beside reads, and its file becomes sparse there and nowhere else;
// Identify promises no zeroes for it.
func TestDirectDiscard(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		h, q, file, want := newFull(t, opt, 3)
		h.needRing()
		b, st := h.identify(0, 1, 0)
		require.Equal(t, success, st)
		require.Zero(t, b[33], "DLFEAT")
		r, at := h.alloc(4096)
		for i, p := range [][2]uint32{{4096, 1024}, {100, 0}, {6144, 512}, {8192, 8}} { // first block, blocks
			binary.LittleEndian.PutUint32(r[16*i+4:], p[1])
			binary.LittleEndian.PutUint32(r[16*i+8:], p[0])
			clear(want[p[0]*512:][:p[1]*512])
		}
		data, to := h.alloc(4096)
		dsm, read := cmdOf(opDSM, 1).prp(at, 0).dw(10, 3).dw(11, 4), rw(opRead, 1, 8, 8).prp(to, 0)
		one, two := h.put(q, dsm), h.put(q, read)
		h.ring(q)
		require.Equal(t, map[uint16]Status{one: success, two: success}, h.collect(q, 2))
		require.True(t, bytes.Equal(want[4096:8192], data[:4096]))
		// A range past the end refuses all of them.
		binary.LittleEndian.PutUint32(r[16*3+8:], testSize/512)
		binary.LittleEndian.PutUint32(r[8:], 1024)
		h.expect(lbaOutOfRange, q, dsm)
		h.wantSparse(file, want, 1500)
	})
}

// TestDirectZeroes: Write Zeroes reaches the device, which gives the space back where it can; no zeroes are written.
func TestDirectZeroes(t *testing.T) {
	ways(t, func(t *testing.T, opt Options) {
		h, q, file, want := newFull(t, opt, 4)
		for i := range uint64(3) {
			h.put(q, rw(opWriteZeroes, 1, 2048+1024*i, 1024))
			clear(want[(2048+1024*i)*512:][:1024*512])
		}
		h.ring(q)
		for _, st := range h.collect(q, 3) {
			require.Equal(t, success, st)
		}
		h.wantSparse(file, want, 3000)
	})
}

// TestDirectGrows: a device that became larger is served as it was, and said.
func TestDirectGrows(t *testing.T) {
	dev, file := newLoop(t, testSize)
	var log bytes.Buffer
	h := newHostOn(t, dev, Options{Log: textLog(&log)}).enable()
	q := h.queue(1, 16)
	require.NoError(t, os.Truncate(file, 2*testSize))
	out, err := exec.Command("losetup", "-c", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	h.expect(success, q, cmdOf(opFlush, 1))
	_, at := h.alloc(4096)
	h.expect(lbaOutOfRange, q, rw(opRead, 1, testSize/512, 8).prp(at, 0))
	require.NoError(t, h.c.Close())
	require.Equal(t, 1, strings.Count(log.String(), "has become larger"))
}
