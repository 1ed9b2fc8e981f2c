package alloc

import "github.com/lanefs/lanefs/fs/ext4/disk"

// trimBatch is how many runs of a group are held at once while they are discarded.
const trimBatch = 64

// Trim calls discard with every run of at least least free blocks in [from, to), for FITRIM. The blocks of a run
// are not allocated while discard has them. It returns how many blocks were discarded.
func (a *Allocator) Trim(from, to disk.Block, least uint32, discard func(start disk.Block, n uint32) error) (uint64, error) {
	from = max(from, disk.Block(a.sb.FirstDataBlock))
	to = min(to, disk.Block(a.sb.BlocksCount))
	total := uint64(0)
	for from < to {
		g, bit := a.groupOf(from)
		end := min(g.blocks, uint64ToBit(uint64(to-a.first(g))))
		for bit < end {
			runs, next, err := a.holdRuns(g, bit, end, max(least, 1))
			if err != nil {
				return total, err
			}
			bit = next
			err = a.trimRuns(g, runs, discard)
			if err != nil {
				return total, err
			}
			for _, r := range runs {
				total += uint64(r.n)
			}
		}
		from = a.first(g) + disk.Block(end)
	}
	return total, nil
}

// holdRuns holds the next runs in [bit, end) and says where to go on.
func (a *Allocator) holdRuns(g *group, bit, end, least uint32) ([]run, uint32, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.avail.Load() < least {
		return nil, end, nil
	}
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return nil, end, err
	}
	defer buf.Put()
	bitmap := g.bitmapLocked(buf)
	var runs []run
	for bit = nextClear(bitmap, bit, end); bit < end && len(runs) < trimBatch; bit = nextClear(bitmap, bit, end) {
		stop := nextSet(bitmap, bit, end)
		if n := stop - bit; n >= least && a.promise(n, n, UseNodes) == n {
			runs = append(runs, run{bit, n})
		}
		bit = stop
	}
	for _, r := range runs {
		g.holdLocked(buf, r.off, r.n)
	}
	g.availLocked()
	return runs, bit, nil
}

func (a *Allocator) trimRuns(g *group, runs []run, discard func(disk.Block, uint32) error) (err error) {
	for _, r := range runs {
		if err == nil {
			err = discard(a.first(g)+disk.Block(r.off), r.n)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range runs {
		g.unholdLocked(r)
		a.avail.Add(int64(r.n))
	}
	return err
}
