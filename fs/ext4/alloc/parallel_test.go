package alloc

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Many at once, on a volume so small that they meet: no block and no inode has two owners, and nothing is lost.
func TestParallel(t *testing.T) {
	path := mkfs(t, "20M", "-b", "1024", "-g", "2048", "-N", "2000")
	before := groupCounts(t, path)
	v := open(t, path)
	free, inodes := v.a.FreeBlocks(), v.a.FreeInodes()
	owner := make([]atomic.Int32, v.sb.BlocksCount)
	inoOwner := make([]atomic.Int32, v.sb.InodesCount+1)
	var wg sync.WaitGroup
	for id := range int32(8) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := worker{volume: v, id: id + 1, r: rand.New(rand.NewPCG(uint64(id), 5)), owner: owner, inoOwner: inoOwner}
			for range 400 {
				w.step()
			}
			w.end()
		}()
	}
	wg.Wait()
	require.NoError(t, v.jnl.Commit())
	require.Equal(t, free, v.a.FreeBlocks())
	require.Equal(t, inodes, v.a.FreeInodes())
	require.Zero(t, v.a.Pending())
	require.EqualValues(t, free, v.a.avail.Load())
	for i := range v.a.groups {
		g := &v.a.groups[i]
		require.Zero(t, g.held)
		require.Nil(t, g.busy)
		require.Empty(t, g.pending)
	}
	v.close()
	blocks, inos := fsck(t, path)
	require.Empty(t, blocks)
	require.Empty(t, inos)
	require.Equal(t, before, groupCounts(t, path))
}

type worker struct {
	*volume
	id       int32
	r        *rand.Rand
	owner    []atomic.Int32
	inoOwner []atomic.Int32
	window   Window
	end1     disk.Block
	runs     []ext
	inodes   []uint32
}

// handle runs f under a handle; it may fail for want of space, which a commit may mend.
func (w *worker) handle(credits int, f func(h *jbd2.Handle) error) {
	h, err := w.jnl.Begin(credits)
	if err != nil {
		w.t.Error(err)
		return
	}
	err = f(h)
	if e := h.End(); e != nil {
		w.t.Error(e)
	}
	switch {
	case errors.Is(err, ErrNoSpace):
		err = w.jnl.Commit()
	case errors.Is(err, ErrNoInodes):
		err = nil
	}
	if err != nil {
		w.t.Error(err)
	}
}

func (w *worker) step() {
	switch k := w.r.IntN(20); {
	case k < 6:
		w.handle(AllocCredits, func(h *jbd2.Handle) error {
			b, n, err := w.a.AllocWindow(h, &w.window, w.end1, 1+w.r.Uint32N(20), 1, 0)
			w.taken(b, n)
			if err == nil {
				w.end1 = b + disk.Block(n)
			}
			return err
		})
	case k < 10:
		w.handle(AllocCredits, func(h *jbd2.Handle) error {
			b, n, err := w.a.Alloc(h, disk.Block(w.r.Uint64N(w.sb.BlocksCount)), 1+w.r.Uint32N(400), 1, 0)
			w.taken(b, n)
			return err
		})
	case k < 15 && len(w.runs) > 0:
		w.give()
	case k < 17:
		w.handle(AllocInodeCredits, func(h *jbd2.Handle) error {
			ino, err := w.a.AllocInode(h, disk.InoRoot, false)
			if err == nil {
				if !w.inoOwner[ino].CompareAndSwap(0, w.id) {
					w.t.Errorf("inode %d has two owners", ino)
				}
				w.inodes = append(w.inodes, ino)
			}
			return err
		})
	case k < 19 && len(w.inodes) > 0:
		w.giveInode()
	case k == 19 && w.r.IntN(4) == 0:
		_, err := w.a.Trim(0, 1<<40, 10, func(b disk.Block, n uint32) error { return nil })
		if err != nil {
			w.t.Error(err)
		}
	case k == 19:
		w.a.Drop(&w.window)
	}
}

func (w *worker) taken(b disk.Block, n uint32) {
	for i := range disk.Block(n) {
		if !w.owner[b+i].CompareAndSwap(0, w.id) {
			w.t.Errorf("block %d has two owners", b+i)
		}
	}
	if n > 0 {
		w.runs = append(w.runs, ext{b, n})
	}
}

func (w *worker) give() {
	x := w.runs[len(w.runs)-1]
	w.runs = w.runs[:len(w.runs)-1]
	w.handle(FreeCredits, func(h *jbd2.Handle) error {
		for i := range disk.Block(x.n) {
			w.owner[x.b+i].Store(0)
		}
		return w.a.Free(h, x.b, x.n)
	})
}

func (w *worker) giveInode() {
	ino := w.inodes[len(w.inodes)-1]
	w.inodes = w.inodes[:len(w.inodes)-1]
	w.handle(FreeInodeCredits, func(h *jbd2.Handle) error {
		w.inoOwner[ino].Store(0)
		return w.a.FreeInode(h, ino, false)
	})
}

func (w *worker) end() {
	w.a.Drop(&w.window)
	for len(w.runs) > 0 {
		w.give()
	}
	for len(w.inodes) > 0 {
		w.giveInode()
	}
}
