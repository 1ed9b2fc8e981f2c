package softctl

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQueueWrapsAndPhaseTurns(t *testing.T) {
	h := newHost(t, Options{}).enable()
	for id, size := range map[uint16]uint32{1: 2, 2: 3, 3: 16} {
		q := h.queue(id, size)
		for range 5 * size {
			h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))
		}
		// A full queue is one entry short of its size.
		for range size - 1 {
			h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
		}
		h.ring(q)
		require.True(t, h.c.Step(id))
		for range size - 1 {
			_, ok := h.poll(q)
			require.True(t, ok)
		}
		_, ok := h.poll(q)
		require.False(t, ok)
		require.False(t, h.c.Step(id))
	}
}

// TestCompletionQueueFull: an entry that the host has not consumed is never overwritten, nothing is lost.
func TestCompletionQueueFull(t *testing.T) {
	h := newHost(t, Options{}).enable()
	p := h.newPair(1, 64)
	p.size = 4
	h.expect(success, h.admin, createCQ(1, 4, p.cqAt))
	h.expect(success, h.admin, createSQ(1, 64, p.sqAt, 1))
	sub := &pair{id: 1, size: 64, sq: p.sq}
	var sent []uint16
	for range 60 {
		sent = append(sent, h.put(sub, rw(2, 1, 0, 1).prp(h.base, 0)))
	}
	h.ring(sub)
	var got []uint16
	for len(got) < len(sent) {
		require.True(t, h.c.Step(1))
		require.False(t, h.c.Step(1), "full")
		n := 0
		for {
			e, ok := h.peek(p)
			if !ok {
				break
			}
			got = append(got, e.cid())
			n++
		}
		require.Equal(t, 3, n, "one entry stays free")
		h.store(0x1000+3*4, p.head)
	}
	require.Equal(t, sent, got)
}

// TestSharedCompletionQueue: two submission queues complete into one queue.
func TestSharedCompletionQueue(t *testing.T) {
	h := newHost(t, Options{}).enable()
	a := h.queue(1, 16)
	_, at := h.alloc(4096)
	b := &pair{id: 2, size: 16, sq: h.mem.b[at-h.base:]}
	h.expect(success, h.admin, createSQ(2, 16, at, 1))
	for range 9 {
		h.put(a, rw(2, 1, 0, 1).prp(h.base, 0))
		h.put(b, rw(2, 1, 0, 1).prp(h.base, 0))
	}
	h.ring(a)
	h.ring(b)
	seen := map[[2]uint16]bool{}
	for len(seen) < 18 {
		did := h.c.Step(1)
		require.True(t, h.c.Step(2) || did)
		for {
			e, ok := h.poll(a)
			if !ok {
				break
			}
			k := [2]uint16{e.sqid(), e.cid()}
			require.False(t, seen[k])
			seen[k] = true
		}
	}
}

func TestOutOfOrder(t *testing.T) {
	run := func(seed int64) (order []uint16) {
		h := newHost(t, Options{OutOfOrder: true, Seed: seed}).enable()
		q := h.queue(1, 64)
		for range 50 {
			h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
		}
		h.ring(q)
		seen := map[uint16]bool{}
		for len(order) < 50 {
			require.True(t, h.c.Step(1), "every step makes progress")
			for {
				e, ok := h.poll(q)
				if !ok {
					break
				}
				require.False(t, seen[e.cid()])
				seen[e.cid()] = true
				order = append(order, e.cid())
			}
		}
		return order
	}
	a := run(1)
	require.False(t, slicesSorted(a))
	require.Equal(t, a, run(1), "a seed gives an order")
	require.NotEqual(t, a, run(2))
}

func slicesSorted(s []uint16) bool {
	for i := 1; i < len(s); i++ {
		if s[i] < s[i-1] {
			return false
		}
	}
	return true
}

func TestLatency(t *testing.T) {
	const latency = 20 * time.Millisecond
	h := newHost(t, Options{Latency: latency}).enable()
	q := h.queue(1, 16)
	begin := time.Now()
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.ring(q)
	require.True(t, h.c.Step(1))
	require.Eventually(t, func() bool { h.c.Step(1); _, ok := h.poll(q); return ok }, time.Minute, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(begin), latency)
}

func TestCounters(t *testing.T) {
	h, q := ready(t, Options{})
	_, at := h.alloc(4096)
	before := h.c.Counters()[0].Commands
	for range 5 {
		h.expect(success, q, rw(1, 1, 0, 8).prp(at, 0))
	}
	for range 3 {
		h.put(q, rw(2, 1, 0, 2).prp(at, 0))
	}
	h.ring(q)
	h.c.Step(1)
	for range 3 {
		_, ok := h.poll(q)
		require.True(t, ok)
	}
	h.expect(lbaOutOfRange, q, rw(2, 1, 1<<40, 8).prp(at, 0))
	h.c.Step(1)
	c := h.c.Counters()
	require.Len(t, c, 2)
	require.Equal(t, QueueCounters{ID: 1, Commands: 9, Failed: 1, Completions: 9, ByOpcode: map[uint8]uint64{1: 5, 2: 4},
		BytesRead: 3 * 1024, BytesWritten: 5 * 4096, SQDoorbells: 7, CQDoorbells: 7}, c[1])
	require.Equal(t, before, c[0].Commands)
}

// TestCountedFirst reads the counters as soon as a completion is seen, while the controller's thread that wrote it still
// runs: they have the command and its completion.
func TestCountedFirst(t *testing.T) {
	h := newHost(t, Options{Threads: 1}).enable()
	q := h.queue(1, 16)
	_, at := h.alloc(4096)
	for n := range uint64(20000) {
		h.put(q, rw(2, 1, 0, 8).prp(at, 0))
		h.ring(q)
		for k, ok := 1, false; !ok; k++ {
			h.c.Step(1) // wakes the thread where it sleeps
			if k%100 == 0 {
				runtime.Gosched() // or with one processor the thread has it when the runtime's monitor takes it from this loop
			}
			_, ok = h.peek(q)
		}
		c := h.c.stats[1].Load()
		require.Equal(t, n+1, c.completions.Load())
		require.Equal(t, n+1, c.commands.Load())
		h.store(0x1000+(2*int64(q.id)+1)*h.stride, q.head)
	}
}

// TestQueuesInParallel has one host thread for each queue pair, and a driver that makes and deletes another one all the
// while, maps and unmaps, and reads registers.
func TestQueuesInParallel(t *testing.T) {
	const queues, rounds = 4, 300
	h := newHost(t, Options{Queues: queues + 1}).enable()
	var pairs []*pair
	var bufs [][]byte
	var ats []uint64
	for i := range queues {
		pairs = append(pairs, h.queue(uint16(i+1), 8))
		b, at := h.alloc(16384)
		bufs, ats = append(bufs, b), append(ats, at)
	}
	extra := h.newPair(queues+1, 8)
	_, scratch := h.alloc(4096)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for i, q := range pairs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			b := bufs[i]
			for n := range rounds {
				slba := uint64(i*500 + n%100)
				random(uint64(i*rounds+n), b[:4096])
				run := func(op uint8, at uint64) {
					cid := h.put(q, rw(op, 1, slba*8, 8).prp(at, 0))
					h.ring(q)
					h.c.Step(q.id)
					e, ok := h.poll(q)
					if !ok || e.cid() != cid || e.status() != success {
						t.Errorf("queue %d: %v %v", q.id, e, ok)
					}
				}
				run(1, ats[i])
				run(2, ats[i]+8192)
				if !bytes.Equal(b[:4096], b[8192:12288]) {
					t.Errorf("queue %d: data differs", q.id)
				}
			}
		}()
	}
	wg.Add(1)
	go func() { // a lane that goes on ringing and stepping whatever happens to its queue
		defer wg.Done()
		for n := uint32(0); !stop.Load(); n++ {
			h.store(0x1000+2*int64(extra.id)*4, n%8)
			h.c.Step(extra.id)
			h.store(0x1000+(2*int64(extra.id)+1)*4, n%8)
			runtime.Gosched()
		}
	}()
	for i := range extra.sq { // every entry is a Read
		extra.sq[i] = 0
	}
	for i := 0; i < len(extra.sq); i += 64 {
		extra.sq[i] = 2
		extra.sq[i+4] = 1
		binary.LittleEndian.PutUint64(extra.sq[i+24:], scratch)
	}
	m := newMemory(t, 8192)
	for range rounds {
		h.expect(success, h.admin, createCQ(extra.id, 8, extra.cqAt))
		h.expect(success, h.admin, createSQ(extra.id, 8, extra.sqAt, extra.id))
		a, err := h.c.Map(m, 0, 8192)
		require.NoError(t, err)
		require.Equal(t, uint32(1), h.c.Read32(0x1c))
		h.expect(success, h.admin, cmdOf(0, 0).dw(10, uint32(extra.id)))
		h.expect(success, h.admin, cmdOf(4, 0).dw(10, uint32(extra.id)))
		require.NoError(t, h.c.Unmap(a))
		h.c.Counters()
	}
	stop.Store(true)
	wg.Wait()
}

// TestResetUnderLoad resets and closes the controller while lanes step.
func TestResetUnderLoad(t *testing.T) {
	h := newHost(t, Options{OutOfOrder: true, Seed: 1}).enable()
	var wg sync.WaitGroup
	var stop atomic.Bool
	db := h.c.bar.word(0x1008)
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				h.c.Step(1)
				h.c.Step(0)
				runtime.Gosched()
			}
		}()
	}
	for n := range 100 {
		p := h.newPair(1, 16)
		stepped := func(r raw) {
			cid := h.put(h.admin, r)
			h.ring(h.admin)
			var e entry
			require.Eventually(t, func() bool { h.c.Step(0); var ok bool; e, ok = h.poll(h.admin); return ok }, time.Minute, time.Microsecond)
			require.Equal(t, cid, e.cid())
			require.Equal(t, success, e.status())
		}
		stepped(createCQ(1, 16, p.cqAt))
		stepped(createSQ(1, 16, p.sqAt, 1))
		for range 10 {
			h.put(p, rw(2, 1, 0, 8).prp(h.base+15<<20, 0))
		}
		atomic.StoreUint32(db, p.tail)
		switch n % 3 {
		case 0:
			h.c.Write32(0x14, 0)
		case 1:
			require.NoError(t, h.c.Reset())
		case 2:
			h.c.Write32(0x20, 0x4e564d65)
		}
		h.used -= 2 * 4096
		h.enable()
	}
	stop.Store(true)
	wg.Wait()
	wg.Add(1)
	go func() {
		defer wg.Done()
		for range 1000 {
			h.c.Step(1)
			h.c.Step(3)
			h.c.Read32(0x1c)
		}
	}()
	require.NoError(t, h.c.Close())
	wg.Wait()
}
