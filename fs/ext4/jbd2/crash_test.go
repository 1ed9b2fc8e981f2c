package jbd2

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

var crashSeed = flag.Uint64("crash-seed", 0, "repeat the power cuts of this seed")

const (
	crashBS     = 1024
	crashBlocks = 1700
	crashLog    = 1024 // blocks of the log
	crashMeta   = 300  // blocks that the workload changes
)

// scattered maps the log in runs of 37 blocks, one after the other with gaps, last run first.
func scattered(length uint32) MapFunc {
	const run, gap = 37, 5
	runs := (length + run - 1) / run
	return func(n uint32) (Block, uint32, error) {
		r, off := n/run, n%run
		return Block(crashMeta + 100 + (runs-1-r)*(run+gap) + off), run - off, nil
	}
}

// mkJournal writes an empty journal.
func mkJournal(d *testDevice, bs int, length uint32, f MapFunc) {
	sb := &superblock{blockType: typeSuperblockV2, sequence: 1, raw: make([]byte, bs)}
	be.PutUint32(sb.raw[0x0c:], uint32(bs))
	be.PutUint32(sb.raw[0x10:], length)
	be.PutUint32(sb.raw[0x14:], 1)
	be.PutUint32(sb.raw[0x40:], 1)
	copy(sb.raw[0x30:], "uuid of journal.")
	phys, _, _ := f(0)
	sb.put(d.image[int(phys)*bs:])
	copy(d.durable, d.image)
}

// mounted is a volume with its log recovered and started.
type mounted struct {
	c *Cache
	j *Journal
	r *Recovery
}

func mountLog(t *testing.T, d *testDevice, bs int, length uint32, f MapFunc, sum Checksum, wide bool, cfg Config) *mounted {
	t.Helper()
	c, err := NewCache(d, bs, CacheOptions{Limit: 64 << 10})
	require.NoError(t, err)
	l, err := OpenLog(c, length, f)
	require.NoError(t, err)
	r, err := l.Scan()
	require.NoError(t, err)
	if r.Needed() {
		require.NoError(t, r.Replay(nil))
		require.NoError(t, r.Replay(nil), "replaying twice is allowed")
		require.NoError(t, r.Finish())
	}
	if cfg.Interval == 0 {
		cfg.Interval = time.Hour
	}
	j, err := l.Start(cfg, sum, wide)
	require.NoError(t, err)
	return &mounted{c, j, r}
}

// world is what the blocks should hold: 0 nothing in particular, below freeMark the value of a metadata block, above it
// the name of a period in which the block was free and may hold file data.
type world [crashMeta]uint64

const (
	freeMark = 1 << 60
	dataMark = 1 << 61 // values of file data
)

type dataWritten struct{ period, value uint64 }

type shot struct {
	image []byte
	acked int // index into states: at least this much must be there
	data  int // so much of workload.data must be there
	what  string
}

// workload runs random operations and takes pictures of the medium as power cuts would leave it.
type workload struct {
	t   *testing.T
	rng *rand.Rand
	d   *testDevice
	m   *mounted

	mu     sync.Mutex
	states []world // by transaction, in order
	data   []dataWritten
	acked  int     // protected by mu
	shots  []shot  // protected by mu
	free   []Block // protected by mu: freed, and the transaction that did it is durable

	now    world
	last   TID
	any    bool
	usable map[uint64]bool // free periods in which the block may be used
	value  uint64
}

func (w *workload) step() {
	t, c, j := w.t, w.m.c, w.m.j
	h, err := j.Begin(12)
	require.NoError(t, err)
	if !w.any || h.TID() != w.last {
		w.mu.Lock()
		w.states = append(w.states, w.now)
		w.mu.Unlock()
		w.last, w.any = h.TID(), true
	}
	var freed []Block
	for range 1 + w.rng.IntN(12) {
		b := Block(w.rng.IntN(crashMeta-1) + 1)
		if w.rng.IntN(3) == 0 {
			b = Block(w.rng.IntN(8) + 1) // hot
		}
		switch cur := w.now[b]; {
		case cur > freeMark && !w.usable[cur]:
			// Freed, and the transaction that freed it has not committed: it must not be changed.
		case cur < freeMark && w.rng.IntN(6) == 0:
			h.Forget(b)
			freed = append(freed, b)
			w.value++
			w.now[b] = freeMark + w.value
		default:
			w.value++
			v := w.value
			var buf *Buffer
			if cur > freeMark || w.rng.IntN(4) == 0 {
				buf, err = c.New(b)
			} else {
				buf, err = c.Get(b)
			}
			require.NoError(t, err)
			buf.Lock()
			fillBlock(buf.Data(), v)
			h.Dirty(buf)
			buf.Unlock()
			buf.Put()
			w.now[b] = v
		}
	}
	for _, b := range freed {
		h.OnCommit(func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.free = append(w.free, b)
		})
	}
	w.mu.Lock()
	w.states[len(w.states)-1] = w.now
	w.mu.Unlock()
	require.NoError(t, h.End())
	if w.rng.IntN(6) == 0 {
		n := len(w.states)
		require.NoError(t, j.Commit())
		w.mu.Lock()
		w.acked = n
		w.mu.Unlock()
	}
	if w.rng.IntN(5) == 0 {
		w.writeData()
	}
}

// writeData writes file data to freed blocks, around the journal, durably.
func (w *workload) writeData() {
	w.mu.Lock()
	list := w.free
	w.free = nil
	w.mu.Unlock()
	if len(list) == 0 {
		return
	}
	vals := map[Block]uint64{}
	for _, b := range list {
		w.value++
		vals[b] = dataMark + w.value
		w.usable[w.now[b]] = true
		buf, _ := w.d.Alloc(crashBS)
		fillBlock(buf.Bytes(), vals[b])
		require.NoError(w.t, w.d.Write(w.m.c.off(b), false, buf.Slice(0, crashBS)))
	}
	require.NoError(w.t, w.d.Flush())
	w.mu.Lock()
	defer w.mu.Unlock()
	for b, v := range vals {
		w.data = append(w.data, dataWritten{w.now[b], v})
	}
}

func fillBlock(p []byte, v uint64) {
	for i := 0; i < len(p); i += 8 {
		be.PutUint64(p[i:], v)
	}
	if v%7 == 0 {
		be.PutUint32(p, magic) // must be escaped
	}
}

// cut is called by the device before each write and flush.
func (w *workload) cut(d *testDevice) {
	if d.cutRng.Float64() >= 0.03 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	img := d.crashLocked(rand.New(rand.NewPCG(d.cutSeed(), uint64(len(w.shots)))))
	w.shots = append(w.shots, shot{img, w.acked, len(w.data), fmt.Sprintf("after %d writes", d.writes)})
}

// check recovers a picture and finds the transaction whose state it shows.
func (w *workload) check(s shot, sum Checksum) {
	t := w.t
	d := &testDevice{lba: 512, image: s.image, durable: s.image}
	m := mountLog(t, d, crashBS, crashLog, scattered(crashLog), sum, true, Config{})
	defer func() {
		require.NoError(t, m.j.Close())
		require.NoError(t, m.c.Close())
	}()
	var best string
	data := map[uint64]uint64{}
	for _, x := range w.data[:s.data] {
		data[x.period] = x.value
	}
	for i := s.acked; i <= len(w.states); i++ {
		want := world{}
		if i > 0 {
			want = w.states[i-1]
		}
		bad := ""
		for b, v := range want {
			if v > freeMark {
				v = data[v]
			}
			if v == 0 {
				continue
			}
			p := make([]byte, crashBS)
			fillBlock(p, v)
			got := d.image[b*crashBS:][:crashBS]
			if string(got) != string(p) {
				bad = fmt.Sprintf("block %d has %d, not %d", b, be.Uint64(got[8:]), v)
				break
			}
		}
		if bad == "" {
			return
		}
		best += fmt.Sprintf("  as of transaction %d: %s\n", i, bad)
		if len(best) > 2000 {
			break
		}
	}
	require.Fail(t, "no committed state", "%s, %d transactions of %d acknowledged, %d replayed blocks, next TID %d:\n%s",
		s.what, s.acked, len(w.states), m.r.Blocks(), m.r.end, best)
}

// TestPowerCuts: whatever the moment, and whatever part of what was not flushed is lost, recovery shows the volume as of
// some transaction, none older than the last that was acknowledged.
func TestPowerCuts(t *testing.T) {
	seeds := []uint64{1, disktest.FreshSeed()}
	if *crashSeed != 0 {
		seeds = []uint64{*crashSeed}
	}
	for _, seed := range seeds {
		for _, sum := range []Checksum{ChecksumNone, ChecksumV2, ChecksumV3} {
			t.Run(fmt.Sprintf("seed=%d/checksum=%d", seed, sum), func(t *testing.T) {
				w := &workload{t: t, usable: map[uint64]bool{}, rng: rand.New(rand.NewPCG(seed, uint64(sum)))}
				d := newTestDevice(crashBS*crashBlocks, 512)
				d.cutRng = rand.New(rand.NewPCG(seed, 99))
				mkJournal(d, crashBS, crashLog, scattered(crashLog))
				w.d = d
				w.m = mountLog(t, d, crashBS, crashLog, scattered(crashLog), sum, true, Config{})
				d.setCut(w.cut)
				for range 1500 {
					w.step()
				}
				d.setCut(nil)
				require.NotEmpty(t, w.shots)
				for _, s := range w.shots {
					w.check(s, sum)
				}
				st := w.m.c.Stats()
				require.NoError(t, w.m.j.Close())
				require.NoError(t, w.m.c.Close())
				require.Zero(t, st.Overruns)
				require.Greater(t, st.JournalWritten, int64(3*crashLog*crashBS), "the log went around")
				w.check(shot{d.durable, len(w.states), len(w.data), "closed"}, sum)
				t.Logf("%d cuts, %d transactions, %d checkpoints", len(w.shots), len(w.states), st.Checkpoints)
			})
		}
	}
}
