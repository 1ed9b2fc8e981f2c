package alloc

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// model is what should be in use.
type model struct {
	*volume
	r      *rand.Rand
	runs   []ext // given out
	blocks map[uint64]bool
	gone   map[uint64]bool // freed, not committed
	inodes map[uint64]bool
	dirs   map[uint64]bool
	list   []uint64
}

type ext struct {
	b disk.Block
	n uint32
}

func newModel(v *volume, seed uint64) *model {
	return &model{volume: v, r: rand.New(rand.NewPCG(seed, 3)), blocks: map[uint64]bool{}, gone: map[uint64]bool{},
		inodes: map[uint64]bool{}, dirs: map[uint64]bool{}}
}

func (m *model) take(want, least uint32) error {
	goal := disk.Block(m.r.Uint64N(m.sb.BlocksCount + 10))
	b, n, err := m.alloc(goal, want, least)
	if err != nil {
		return err
	}
	require.True(m.t, n >= least && n <= want)
	m.taken(b, n)
	return nil
}

func (m *model) taken(b disk.Block, n uint32) {
	require.True(m.t, m.a.Valid(b, n))
	for i := range uint64(n) {
		require.False(m.t, m.blocks[uint64(b)+i], "block %d given out twice", uint64(b)+i)
		require.False(m.t, m.gone[uint64(b)+i], "block %d used again before the commit", uint64(b)+i)
		m.blocks[uint64(b)+i] = true
	}
	m.runs = append(m.runs, ext{b, n})
}

// give frees a part of a run.
func (m *model) give() {
	i := m.r.IntN(len(m.runs))
	x := m.runs[i]
	keep := uint32(0)
	if m.r.IntN(3) == 0 {
		keep = m.r.Uint32N(x.n)
	}
	m.free(x.b+disk.Block(keep), x.n-keep)
	for k := keep; k < x.n; k++ {
		delete(m.blocks, uint64(x.b)+uint64(k))
		m.gone[uint64(x.b)+uint64(k)] = true
	}
	m.runs[i].n = keep
	if keep == 0 {
		m.runs[i] = m.runs[len(m.runs)-1]
		m.runs = m.runs[:len(m.runs)-1]
	}
}

func (m *model) commit() {
	require.NoError(m.t, m.jnl.Commit())
	m.gone = map[uint64]bool{}
	require.Zero(m.t, m.a.Pending())
}

func (m *model) takeInode() {
	isDir := m.r.IntN(4) == 0
	parent := uint32(disk.InoRoot)
	if len(m.list) > 0 && m.r.IntN(2) == 0 {
		parent = uint32(m.list[m.r.IntN(len(m.list))])
	}
	m.do(AllocInodeCredits, func(h *jbd2.Handle) {
		ino, err := m.a.AllocInode(h, parent, isDir)
		if errors.Is(err, ErrNoInodes) {
			require.Zero(m.t, m.a.FreeInodes())
			return
		}
		require.NoError(m.t, err)
		require.GreaterOrEqual(m.t, ino, m.sb.FirstIno)
		require.False(m.t, m.inodes[uint64(ino)], "inode %d given out twice", ino)
		used, err := m.a.InodeInUse(ino)
		require.NoError(m.t, err)
		require.True(m.t, used)
		m.inodes[uint64(ino)] = true
		m.dirs[uint64(ino)] = isDir
		m.list = append(m.list, uint64(ino))
	})
}

func (m *model) giveInode() {
	i := m.r.IntN(len(m.list))
	ino := m.list[i]
	m.do(FreeInodeCredits, func(h *jbd2.Handle) { require.NoError(m.t, m.a.FreeInode(h, uint32(ino), m.dirs[ino])) })
	m.list[i] = m.list[len(m.list)-1]
	m.list = m.list[:len(m.list)-1]
	delete(m.inodes, ino)
}

// Random allocation and freeing: in the middle, e2fsck finds exactly the model's blocks and inodes to be in use without
// an owner; at the end, when all is freed, it finds nothing, and every group has what it had.
func TestAgainstFsck(t *testing.T) {
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			t.Parallel()
			path := mkfs(t, im.size, im.args...)
			before := groupCounts(t, path)
			fsck(t, path)
			m := newModel(open(t, path), 1)
			free, inodes := m.a.FreeBlocks(), m.a.FreeInodes()
			for i := range 1200 {
				switch k := m.r.IntN(20); {
				case k < 7:
					require.NoError(t, m.take(1+m.r.Uint32N(1+m.r.Uint32N(300)), 1))
				case k < 10 && len(m.runs) > 0:
					m.give()
				case k < 16:
					m.takeInode()
				case k < 19 && len(m.list) > 0:
					m.giveInode()
				case i%5 == 0:
					m.commit()
				}
				if i%10 == 0 {
					m.undone()
				}
				require.Equal(t, free-uint64(len(m.blocks)), m.a.FreeBlocks())
				require.Equal(t, inodes-uint64(len(m.inodes)), m.a.FreeInodes())
			}
			m.close()
			blocks, inos := fsck(t, path)
			require.Equal(t, m.blocks, blocks)
			require.Equal(t, m.inodes, inos)

			m.volume = open(t, path)
			for len(m.runs) > 0 {
				m.give()
			}
			for len(m.list) > 0 {
				m.giveInode()
			}
			require.Equal(t, free, m.a.FreeBlocks())
			m.close()
			blocks, inos = fsck(t, path)
			require.Empty(t, blocks)
			require.Empty(t, inos)
			require.Equal(t, before, groupCounts(t, path))
		})
	}
}

// Everything can be given out, block by block and inode by inode; then there is nothing left, and then all comes back.
func TestFillUp(t *testing.T) {
	for _, im := range images {
		if im.name == "4k" || im.name == "small inodes" {
			continue // large, and nothing that the others lack
		}
		t.Run(im.name, func(t *testing.T) {
			t.Parallel()
			path := mkfs(t, im.size, im.args...)
			before := groupCounts(t, path)
			m := newModel(open(t, path), 2)
			for m.a.FreeBlocks() > 0 {
				require.NoError(t, m.take(1+m.r.Uint32N(2000), 1))
			}
			require.ErrorIs(t, m.take(1, 1), ErrNoSpace)
			for m.a.FreeInodes() > 0 {
				m.takeInode()
			}
			m.takeInode()
			require.Zero(t, m.a.FreeInodes())
			m.close()
			blocks, inos := fsck(t, path)
			require.Equal(t, m.blocks, blocks)
			require.Equal(t, m.inodes, inos)
			m.volume = open(t, path)
			for len(m.runs) > 0 {
				m.give()
			}
			for len(m.list) > 0 {
				m.giveInode()
			}
			m.close()
			blocks, inos = fsck(t, path)
			require.Empty(t, blocks)
			require.Empty(t, inos)
			require.Equal(t, before, groupCounts(t, path))
		})
	}
}

func TestRefusals(t *testing.T) {
	v := open(t, mkfs(t, "40M", "-b", "1024"))
	defer v.close()
	b, n, err := v.alloc(0, 10, 1)
	require.NoError(t, err)
	corrupt := func(err error) {
		t.Helper()
		require.ErrorAs(t, err, new(*disk.CorruptError))
	}
	before := v.a.FreeBlocks()
	v.do(100, func(h *jbd2.Handle) {
		corrupt(v.a.Free(h, 1, 1))                                          // the superblock
		corrupt(v.a.Free(h, v.a.InodeTable(0), 1))                          // an inode table
		corrupt(v.a.Free(h, disk.Block(v.a.groups[1].desc.BlockBitmap), 1)) // a bitmap
		corrupt(v.a.Free(h, disk.Block(v.sb.BlocksCount-1), 2))             // past the end
		corrupt(v.a.Free(h, 1<<50, 1))
		corrupt(v.a.Free(h, 0, 1))
		corrupt(v.a.Free(h, b+disk.Block(n), 1)) // free already
		corrupt(v.a.Free(h, b, 0))
		require.NoError(t, v.a.Free(h, b, n))
		corrupt(v.a.Free(h, b, n)) // twice
		corrupt(v.a.FreeInode(h, 1, false))
		corrupt(v.a.FreeInode(h, 2, true))
		corrupt(v.a.FreeInode(h, 0, false))
		corrupt(v.a.FreeInode(h, v.sb.InodesCount+1, false))
		corrupt(v.a.FreeInode(h, v.sb.InodesCount, false)) // free already
	})
	require.Equal(t, before+uint64(n), v.a.FreeBlocks())
	require.NoError(t, v.a.Protect(b, 100))
	require.False(t, v.a.Valid(b+99, 1))
	require.True(t, v.a.Valid(b+100, 1))
	corrupt(v.a.Protect(v.a.InodeTable(0), 1))
	corrupt(v.a.Protect(b+50, 100))
}

func TestFreedBlocksWaitForTheCommit(t *testing.T) {
	v := open(t, mkfs(t, "4M", "-b", "1024", "-O", "^has_journal"))
	defer v.close()
	var all []ext
	for {
		b, n, err := v.alloc(0, 1000, 1)
		if err != nil {
			require.ErrorIs(t, err, ErrNoSpace)
			break
		}
		all = append(all, ext{b, n})
	}
	require.Zero(t, v.a.FreeBlocks())
	v.free(all[0].b, all[0].n)
	require.EqualValues(t, all[0].n, v.a.FreeBlocks())
	require.EqualValues(t, all[0].n, v.a.Pending())
	_, _, err := v.alloc(0, 1, 1)
	require.ErrorIs(t, err, ErrNoSpace)
	var told []ext
	v.a.SetDiscard(func(b disk.Block, n uint32) { told = append(told, ext{b, n}) })
	require.NoError(t, v.jnl.Commit())
	require.Equal(t, all[:1], told)
	require.Zero(t, v.a.Pending())
	b, n, err := v.alloc(0, 5000, 1)
	require.NoError(t, err)
	require.Equal(t, all[0], ext{b, n})
	for _, x := range all {
		v.free(x.b, x.n)
	}
}

func TestReservedBlocks(t *testing.T) {
	v := open(t, mkfs(t, "8M", "-b", "1024", "-m", "10"))
	defer v.close()
	free, kept := v.a.FreeBlocks(), v.sb.RBlocksCount
	require.NotZero(t, kept)
	taken := uint64(0)
	take := func(flags int) (err error) {
		v.do(AllocCredits, func(h *jbd2.Handle) {
			var n uint32
			_, n, err = v.a.Alloc(h, 0, 8192, 1, flags)
			taken += uint64(n)
		})
		return err
	}
	for take(0) == nil {
	}
	nodes := v.sb.BlocksCount / nodesPart
	require.Equal(t, free-kept-nodes, taken)
	require.Equal(t, kept+nodes, v.a.Kept())
	for take(UseReserved) == nil {
	}
	require.Equal(t, free-nodes, taken)
	for take(UseNodes) == nil {
	}
	require.Equal(t, free, taken)
}

// A new file gets one aligned run, and one that grows goes on where it ended.
func TestRunsAreLongAndAligned(t *testing.T) {
	v := open(t, mkfs(t, "400M", "-b", "4096"))
	defer v.close()
	goal := disk.Block(v.sb.GroupFirstBlock(1))
	b, n, err := v.alloc(goal+1, 2048, 1) // 8 MiB
	require.NoError(t, err)
	require.EqualValues(t, 2048, n)
	next := b
	for range 10 {
		next += disk.Block(n)
		b, n, err = v.alloc(next, 256, 1)
		require.NoError(t, err)
		require.Equal(t, next, b)
		require.EqualValues(t, 256, n)
	}
	// Leave holes of 100 blocks; 512 go past them to an aligned place.
	b, _, err = v.alloc(0, 512, 1)
	require.NoError(t, err)
	require.Zero(t, b%512)
	_, _, err = v.alloc(0, 100, 200)
	require.Error(t, err)
}

// Two files that grow by turns get long runs each.
func TestWindowsKeepWritersApart(t *testing.T) {
	v := open(t, mkfs(t, "200M", "-b", "4096"))
	defer v.close()
	free := v.a.FreeBlocks()
	var w [2]Window
	var end [2]disk.Block
	pieces := [2]int{}
	for range 200 {
		for i := range w {
			v.do(AllocCredits, func(h *jbd2.Handle) {
				b, n, err := v.a.AllocWindow(h, &w[i], end[i], 16, 1, 0)
				require.NoError(t, err)
				if b != end[i] {
					pieces[i]++
				}
				end[i] = b + disk.Block(n)
			})
		}
	}
	require.LessOrEqual(t, pieces[0], 8)
	require.LessOrEqual(t, pieces[1], 8)
	require.Equal(t, free-2*200*16, v.a.FreeBlocks())
	// An allocation that finds no space gets what windows keep.
	taken := uint64(0)
	for {
		_, n, err := v.alloc(0, 32768, 1)
		if err != nil {
			break
		}
		taken += uint64(n)
	}
	require.Equal(t, free-2*200*16, taken)
	for i := range w {
		v.a.Drop(&w[i])
	}
	require.Zero(t, v.a.FreeBlocks())
	require.Zero(t, v.a.windows.held.Load())
	require.Zero(t, v.a.avail.Load())
}

func TestTrim(t *testing.T) {
	v := open(t, mkfs(t, "40M", "-b", "1024"))
	defer v.close()
	var runs []ext
	for range 40 {
		b, n, err := v.alloc(disk.Block(1+rand.Uint32N(40000)), 50, 1)
		require.NoError(t, err)
		runs = append(runs, ext{b, n})
	}
	free := v.a.FreeBlocks()
	seen := map[disk.Block]bool{}
	n, err := v.a.Trim(0, 1<<60, 1, func(b disk.Block, n uint32) error {
		require.True(t, v.a.Valid(b, n))
		require.Less(t, v.a.avail.Load(), int64(free))
		for i := range disk.Block(n) {
			require.False(t, seen[b+i])
			seen[b+i] = true
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, free, n)
	require.Len(t, seen, int(free))
	for _, x := range runs {
		require.False(t, seen[x.b])
	}
	require.EqualValues(t, free, v.a.avail.Load())
	n, err = v.a.Trim(0, 1<<60, 1<<20, func(disk.Block, uint32) error { return nil })
	require.NoError(t, err)
	require.Zero(t, n)
	stop := errors.New("stop")
	_, err = v.a.Trim(0, 1<<60, 1, func(disk.Block, uint32) error { return stop })
	require.ErrorIs(t, err, stop)
	require.EqualValues(t, free, v.a.avail.Load())
}
