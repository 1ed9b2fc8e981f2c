package engine_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// roundTrip writes and reads back transfers of many sizes and alignments, through every lane.
func (r *rig) roundTrip(t *testing.T) {
	t.Helper()
	limit := r.Engine.MaxTransfer()
	w, rd := r.Chunk(t, limit+8192), r.Chunk(t, limit+8192)
	sizes := []int64{r.Block, 4096, 8192, 12288, limit / 2, limit}
	for i, n := range sizes {
		n = min(max(n/r.Block*r.Block, r.Block), limit)
		for _, off := range []int64{0, r.Block % 4096, 4096} {
			fill.Fill(w.Bytes(), uint64(i)<<32|uint64(off))
			lba := uint64(i*100) % 1000
			for lane := range r.Engine.Lanes() {
				clear(rd.Bytes())
				require.NoError(t, w.Push(0, w.Len()))
				require.NoError(t, rd.Push(0, rd.Len()))
				require.NoError(t, r.Engine.Do(lane, []engine.Command{r.RW(nvme.IOWrite, lba, w, off, n)}))
				require.NoError(t, r.Engine.Do(lane, []engine.Command{r.RW(nvme.IORead, lba, rd, off, n)}))
				require.NoError(t, rd.Pull(0, rd.Len()))
				require.True(t, bytes.Equal(w.Bytes()[off:off+n], rd.Bytes()[off:off+n]))
				require.Zero(t, rd.Bytes()[off+n], "bytes after the transfer are left alone")
			}
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		name string
		so   softctl.Options
		ec   engine.Config
	}{
		{name: "defaults"},
		{name: "block 4096", so: softctl.Options{BlockSize: 4096}},
		{name: "block 1024, out of order", so: softctl.Options{BlockSize: 1024, OutOfOrder: true, Seed: 7}},
		{name: "MDTS 8 KiB", so: softctl.Options{MaxTransfer: 8192}},
		{name: "MDTS none, 4 MiB", so: softctl.Options{MaxTransfer: softctl.Unlimited}, ec: engine.Config{MaxTransfer: 4 << 20, Lanes: 1}},
		{name: "2.0", so: softctl.Options{Version: softctl.Version20}},
		{name: "no write cache", so: softctl.Options{NoWriteCache: true}},
		{name: "latency", so: softctl.Options{Latency: 200 * time.Microsecond}, ec: engine.Config{Lanes: 1}},
		{name: "stride 1", so: softctl.Options{Stride: 1}},
		{name: "stride 2", so: softctl.Options{Stride: 2}},
		{name: "stride 3", so: softctl.Options{Stride: 3}},
		{name: "stride 4", so: softctl.Options{Stride: 4}},
		{name: "batch kernel", ec: engine.Config{Batch: true}},
		{name: "threads", so: softctl.Options{Threads: 2}},
		{name: "threads, out of order", so: softctl.Options{Threads: 3, OutOfOrder: true, Seed: 2}},
		{name: "one queue", so: softctl.Options{Queues: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.so, tc.ec)
			r.roundTrip(t)
			r.sameCounters(t)
		})
	}
}

// sameCounters compares the lanes' own counts with the controller's.
func (r *rig) sameCounters(t *testing.T) {
	t.Helper()
	for _, s := range r.Engine.Stats() {
		r.Soft.Step(s.QID) // so that it sees the last CQ doorbell
	}
	ctrl := map[uint16]softctl.QueueCounters{}
	for _, c := range r.Soft.Counters() {
		ctrl[c.ID] = c
	}
	var total, written, taken uint64
	for _, s := range r.Engine.Stats() {
		c := ctrl[s.QID]
		require.Equal(t, c.Commands, s.Commands, "commands of lane %d", s.Lane)
		require.Equal(t, c.Completions, s.Completions)
		require.Equal(t, c.BytesRead, s.BytesRead)
		written += s.BytesWritten
		taken += c.BytesWritten
		require.Equal(t, c.Failed, s.Errors)
		if r.Stepped() {
			require.Equal(t, c.SQDoorbells, s.SQDoorbells)
			require.Equal(t, c.CQDoorbells, s.CQDoorbells)
		} else { // rung again before it looked
			require.LessOrEqual(t, c.SQDoorbells, s.SQDoorbells)
			require.LessOrEqual(t, c.CQDoorbells, s.CQDoorbells)
		}
		total += s.Commands
	}
	require.NotZero(t, total)
	require.Equal(t, taken+r.lists, written)
}

func TestQueueSizes(t *testing.T) {
	for _, depth := range []int{2, 3, 4, 5, 31, 64, 100, 1024} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			r := newRig(t, softctl.Options{OutOfOrder: depth%2 == 1, Seed: 3}, engine.Config{Depth: depth, Lanes: 2})
			require.Equal(t, depth-1, r.Engine.Depth())
			// Batches larger than the queue and its rings, often enough to wrap all of them.
			const n = 2504 // whole pages
			c := r.Chunk(t, n*512)
			fill.Fill(c.Bytes(), uint64(depth))
			want := append([]byte(nil), c.Bytes()...)
			cmds := make([]engine.Command, n)
			for i := range cmds {
				cmds[i] = r.RW(nvme.IOWrite, uint64(i), c, int64(i)*512, 512)
			}
			require.NoError(t, r.Engine.Do(0, cmds))
			clear(c.Bytes())
			for i := range cmds {
				cmds[i].Op = nvme.IORead
			}
			require.NoError(t, r.Engine.Spread(cmds))
			require.True(t, bytes.Equal(want, c.Bytes()))
			r.sameCounters(t)
			for _, s := range r.Engine.Stats() {
				require.GreaterOrEqual(t, s.Commands, uint64(n/2))
				if depth >= 64 && r.Runtime.Facts().CallerDriven { // a resident lane does not wait until all is there
					require.Less(t, s.SQDoorbells, s.Commands/8, "a doorbell covers a batch")
				}
			}
		})
	}
}

// holding is an injector that holds back the command at block 8.
type holding struct{ held, release chan struct{} }

func (h holding) Command(c softctl.Command) (v softctl.Verdict) {
	if !c.Admin && c.SLBA == 8 {
		close(h.held)
		<-h.release
	}
	return v
}

// TestLanesInTurn: AnyLane is the first lane while it is idle, and the next one while the first is in use.
func TestLanesInTurn(t *testing.T) {
	h := holding{make(chan struct{}), make(chan struct{})}
	r := newRig(t, softctl.Options{Threads: 3}, engine.Config{Lanes: 3})
	r.Soft.SetInjector(h)
	c := r.Chunk(t, 8192)
	do := func(lba uint64) error {
		return r.Engine.Do(engine.AnyLane, []engine.Command{r.RW(nvme.IORead, lba, c, int64(lba%16)*512, 4096)})
	}
	commands := func() (n []uint64) {
		for _, s := range r.Engine.Stats() {
			n = append(n, s.Commands)
		}
		return n
	}
	for range 10 {
		require.NoError(t, do(0))
	}
	require.Equal(t, []uint64{10, 0, 0}, commands())
	long := make(chan error)
	go func() { long <- do(8) }()
	<-h.held
	for range 5 {
		require.NoError(t, do(0))
	}
	close(h.release)
	require.NoError(t, <-long)
	require.Equal(t, []uint64{11, 5, 0}, commands())
}

func TestDepthIsLimitedByMQES(t *testing.T) {
	r := newRig(t, softctl.Options{Depth: 16}, engine.Config{Depth: 1024})
	require.Equal(t, 15, r.Engine.Depth())
	r.roundTrip(t)
}

func TestCommands(t *testing.T) {
	newRig(t, softctl.Options{}, engine.Config{}).commands(t)
}

// commands carries out one of each kind.
func (r *rig) commands(t *testing.T) {
	t.Helper()
	c := r.Chunk(t, 64<<10)
	fill.Fill(c.Bytes(), 1)
	do := func(cmd engine.Command) error { return r.Engine.Do(engine.AnyLane, []engine.Command{cmd}) }
	read := func(lba, n uint64) []byte {
		rd := r.Chunk(t, int64(n*512))
		require.NoError(t, do(r.RW(nvme.IORead, lba, rd, 0, int64(n*512))))
		return rd.Bytes()[:n*512]
	}
	fua := r.RW(nvme.IOWrite, 10, c, 0, 64<<10)
	fua.FUA = true
	require.NoError(t, do(fua))
	require.NoError(t, do(engine.Command{Op: nvme.IOFlush, NSID: 1}))
	require.Equal(t, c.Bytes(), read(10, 128))

	require.NoError(t, do(engine.Command{Op: nvme.IOWriteZeroes, NSID: 1, SLBA: 12, NLB: 3}))
	require.NoError(t, do(engine.Command{Op: nvme.IOWriteZeroes, NSID: 1, SLBA: 20, NLB: 8, Deallocate: true}))
	require.NoError(t, do(engine.Command{Op: nvme.IODSM, NSID: 1, Ranges: []nvme.Range{{SLBA: 40, NLB: 1}, {SLBA: 50, NLB: 16}}}))
	got, want := read(10, 128), append([]byte(nil), c.Bytes()...)
	for _, z := range [][2]int{{12, 3}, {20, 8}, {40, 1}, {50, 16}} {
		clear(want[(z[0]-10)*512 : (z[0]-10+z[1])*512])
	}
	require.Equal(t, want, got)

	// More Dataset Management commands than the lane has pages for their ranges, and full lists.
	cmds := make([]engine.Command, 20)
	for i := range cmds {
		cmds[i] = engine.Command{Op: nvme.IODSM, NSID: 1}
		for j := range 256 {
			cmds[i].Ranges = append(cmds[i].Ranges, nvme.Range{SLBA: uint64(i*256 + j), NLB: 1})
		}
	}
	require.NoError(t, r.Engine.Do(0, cmds))
	r.lists = 20*256*16 + 2*16
	require.Equal(t, make([]byte, 64<<10), read(10, 128))
	r.sameCounters(t)
}

// TestErrors has every command that must fail, with the words it must fail with.
func TestErrors(t *testing.T) {
	r := newRig(t, softctl.Options{Namespaces: 2}, engine.Config{Retries: -1})
	c := r.Chunk(t, 2<<20)
	last := uint64(testrig.ImageSize / 2 / 512)
	opRead, opWrite := uint8(nvme.IORead), uint8(nvme.IOWrite)
	for _, tc := range []struct {
		name string
		cmd  engine.Command
		rule *softctl.Rule
		want string
	}{
		{name: "out of range", cmd: r.RW(nvme.IORead, last-1, c, 0, 1024),
			want: fmt.Sprintf("nvme: Read of 2 blocks at LBA %d of namespace 1: LBA Out of Range (sct 0h sc 80h, More, DNR)", last-1)},
		{name: "media", cmd: r.RW(nvme.IORead, 7, c, 0, 512),
			rule: &softctl.Rule{Opcode: &opRead, Do: softctl.Verdict{Status: softctl.Status(nvme.NewStatus(nvme.SCTMedia, 0x81, false))}},
			want: "nvme: Read of 1 block at LBA 7 of namespace 1: Unrecovered Read Error (sct 2h sc 81h, More)"},
		{name: "media only by SCT", cmd: r.RW(nvme.IOWrite, 7, c, 0, 512),
			rule: &softctl.Rule{Opcode: &opWrite, Do: softctl.Verdict{Status: softctl.Status(nvme.NewStatus(nvme.SCTVendor, 0, false))}},
			want: "nvme: Write of 1 block at LBA 7 of namespace 1: Vendor Specific Status (sct 7h sc 00h, More)"},
		{name: "NSID", cmd: engine.Command{Op: nvme.IOFlush, NSID: 9},
			want: "nvme: Flush of namespace 9: namespace 9 is not one that can be used"},
		{name: "length", cmd: engine.Command{Op: nvme.IOWrite, NSID: 1, NLB: 8, Len: 512, Data: c.IOVA()},
			want: "nvme: Write of 8 blocks at LBA 0 of namespace 1: 512 bytes of data for blocks of 512 bytes"},
		{name: "no blocks", cmd: engine.Command{Op: nvme.IOWriteZeroes, NSID: 1},
			want: "nvme: Write Zeroes of 0 blocks at LBA 0 of namespace 1: want 1 to 65536 blocks and no data"},
		{name: "MDTS", cmd: r.RW(nvme.IORead, 0, c, 0, 2<<20),
			want: "nvme: Read of 4096 blocks at LBA 0 of namespace 1: 2097152 bytes in one command, at most 1048576"},
		{name: "alignment", cmd: r.RW(nvme.IORead, 0, c, 2, 512), want: "not dword aligned"},
		{name: "ranges", cmd: engine.Command{Op: nvme.IODSM, NSID: 1}, want: "nvme: Dataset Management of namespace 1: 0 ranges, want 1 to 256 and no other data"},
		{name: "opcode", cmd: engine.Command{Op: 0x7f, NSID: 1}, want: "nvme: I/O command 0x7f of namespace 1: the engine does not carry this command"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.rule != nil {
				r.Rules.Add(*tc.rule)
				defer r.Rules.Clear()
			}
			cmds := []engine.Command{tc.cmd}
			err := r.Engine.Do(0, cmds)
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, err, cmds[0].Err)
		})
	}
	// A batch reports each command's own result.
	cmds := []engine.Command{r.RW(nvme.IORead, 0, c, 0, 512), r.RW(nvme.IORead, last, c, 0, 512), r.RW(nvme.IORead, 1, c, 512, 512)}
	require.Error(t, r.Engine.Do(0, cmds))
	require.NoError(t, cmds[0].Err)
	require.ErrorContains(t, cmds[1].Err, "LBA Out of Range")
	require.NoError(t, cmds[2].Err)
}

// TestStress has many goroutines on few lanes, each with blocks of its own, and verifies every byte.
func TestStress(t *testing.T) {
	for _, so := range []softctl.Options{
		{},
		{OutOfOrder: true, Seed: 5, Latency: 50 * time.Microsecond},
		{Threads: 2},
	} {
		t.Run(fmt.Sprintf("latency %v, %d threads", so.Latency, so.Threads), func(t *testing.T) {
			r := newRig(t, so, engine.Config{Lanes: 3, Depth: 16})
			const workers, rounds, span = 12, 60, 1 << 20
			var wg sync.WaitGroup
			for w := range workers {
				buf, back := r.Chunk(t, 64<<10), r.Chunk(t, 64<<10)
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 1))
					for round := range rounds {
						n := 1 + rng.IntN(16)
						fill.Fill(buf.Bytes(), uint64(w*rounds+round))
						base := uint64(w)*span/512 + uint64(rng.IntN(256))
						wr, rd := make([]engine.Command, n), make([]engine.Command, n)
						for i := range wr {
							wr[i] = r.RW(nvme.IOWrite, base+uint64(i)*8, buf, int64(i)*4096, 4096)
							rd[i] = r.RW(nvme.IORead, base+uint64(i)*8, back, int64(i)*4096, 4096)
						}
						var err error
						switch rng.IntN(3) {
						case 0:
							err = r.Engine.Spread(wr)
						case 1:
							err = r.Engine.Do(rng.IntN(10), wr)
						default:
							err = r.Engine.Do(engine.AnyLane, wr)
						}
						if err == nil {
							err = r.Engine.Do(engine.AnyLane, rd)
						}
						if err != nil || string(buf.Bytes()[:n*4096]) != string(back.Bytes()[:n*4096]) {
							t.Errorf("worker %d round %d: error %v, or the bytes differ", w, round, err)
							return
						}
					}
				})
			}
			wg.Wait()
			r.sameCounters(t)
		})
	}
}

// TestDisabledByOthers: a controller that others have reset is enabled again, idle or not, long before its commands' deadlines.
func TestDisabledByOthers(t *testing.T) {
	for _, threads := range []int{0, 2} {
		r := testrig.New(t, softctl.Options{Threads: threads}, engine.Config{Lanes: 2, Timeout: time.Hour})
		c := r.Chunk(t, 8192)
		fill.Fill(c.Bytes(), 3)
		require.NoError(t, c.Push(0, 4096))
		require.NoError(t, r.Engine.Do(0, []engine.Command{r.RW(nvme.IOWrite, 8, c, 0, 4096)}))
		require.NoError(t, r.Soft.Reset())
		until(t, "it is enabled again", func() bool { return r.Controller.Generation() == 1 })
		require.NoError(t, r.Soft.Reset())
		done := make(chan error, 1)
		go func() { done <- r.Engine.Do(1, []engine.Command{r.RW(nvme.IORead, 8, c, 4096, 4096)}) }()
		until(t, "the command ends", func() bool { return len(done) > 0 })
		require.NoError(t, <-done)
		require.NoError(t, c.Pull(0, 8192))
		require.True(t, bytes.Equal(c.Bytes()[:4096], c.Bytes()[4096:]))
		require.NoError(t, r.Controller.NotDurable())
	}
}

// TestDisabledAgainAndAgain: a controller that does not stay enabled is given up in the end.
func TestDisabledAgainAndAgain(t *testing.T) {
	r := testrig.New(t, softctl.Options{}, engine.Config{Lanes: 1})
	for gen := range uint32(4) { // each once the reset before is over
		require.NoError(t, r.Soft.Reset())
		until(t, "it is reset, or given up", func() bool { return r.Controller.Generation() > gen })
	}
	require.ErrorContains(t, r.Controller.Err(), "3 resets did not help: the controller is not enabled any more")
}
