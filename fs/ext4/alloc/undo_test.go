package alloc

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// undone does several things under one handle that is undone: afterwards all is as it was, but for groups that are prepared for
// their first use now.
func (m *model) undone() {
	before := m.state()
	var w Window
	m.do(200, func(h *jbd2.Handle) {
		for range 1 + m.r.IntN(6) {
			switch k := m.r.IntN(6); {
			case k == 0:
				_, _ = m.a.AllocInode(h, 2, m.r.IntN(2) == 0)
			case k == 1 && len(m.list) > 0:
				ino := m.list[m.r.IntN(len(m.list))]
				if used, _ := m.a.InodeInUse(uint32(ino)); used {
					require.NoError(m.t, m.a.FreeInode(h, uint32(ino), m.dirs[ino]))
				}
			case k == 2 && len(m.runs) > 0:
				x := m.runs[m.r.IntN(len(m.runs))]
				_ = m.a.Free(h, x.b, x.n) // refused if this handle has freed them
			case k == 3:
				goal := disk.Block(m.r.Uint64N(m.sb.BlocksCount))
				if b, n, err := m.a.AllocWindow(h, &w, goal, 3, 1, UseNodes); err == nil {
					_, _, _ = m.a.AllocWindow(h, &w, b+disk.Block(n), 3, 1, UseNodes)
				}
			default:
				_, _, _ = m.a.Alloc(h, disk.Block(m.r.Uint64N(m.sb.BlocksCount)), 1+m.r.Uint32N(200), 1, UseNodes)
			}
		}
		require.True(m.t, h.Undo())
	})
	m.a.Drop(&w)
	require.Equal(m.t, before, m.state())
}

// state is what the allocator knows of every group.
func (m *model) state() (out []string) {
	a := m.a
	for i := range a.groups {
		g := &a.groups[i]
		g.mu.Lock()
		blocks, err := a.blockBitmapLocked(g)
		require.NoError(m.t, err)
		inodes, err := a.inodeBitmapLocked(g)
		require.NoError(m.t, err)
		waiting := map[uint32]bool{}
		for _, p := range g.pending {
			for k := range p.run.n {
				waiting[p.run.off+k] = true
			}
		}
		require.EqualValues(m.t, g.held, len(waiting))
		for bit := range waiting {
			require.True(m.t, testBit(g.busy, bit))
		}
		require.LessOrEqual(m.t, g.low, nextClear(g.bitmapLocked(blocks), 0, g.blocks), "no block below low is clear")
		require.GreaterOrEqual(m.t, g.longest.Load(), longestRun(g.bitmapLocked(blocks), g.blocks))
		out = append(out, fmt.Sprintf("group %d: %d free blocks, %d free inodes, %d directories, %d can be had, pending %v, bitmaps %x %x", i,
			g.desc.FreeBlocksCount, g.desc.FreeInodesCount, g.desc.UsedDirsCount, g.avail.Load(), waiting, blocks.Data(), inodes.Data()))
		blocks.Put()
		inodes.Put()
		g.mu.Unlock()
	}
	return append(out, fmt.Sprint(a.free.Load(), a.avail.Load(), a.windows.held.Load(), a.freeInodes.Load(), a.dirs.Load()))
}
