package alloc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// One block at a time at the end of a file, as small appends do.
func BenchmarkAppend(b *testing.B) {
	v := open(b, mkfs(b, "300M", "-b", "4096"))
	defer v.close()
	h, err := v.jnl.Begin(1000)
	require.NoError(b, err)
	var taken []disk.Block
	next := disk.Block(0)
	for b.Loop() {
		p, _, err := v.a.Alloc(h, next, 1, 1, UseNodes)
		if err != nil {
			require.ErrorIs(b, err, ErrNoSpace)
			b.StopTimer()
			for _, p := range taken {
				require.NoError(b, v.a.Free(h, p, 1))
			}
			taken, next = taken[:0], 0
			require.NoError(b, h.End())
			require.NoError(b, v.jnl.Commit())
			h, err = v.jnl.Begin(1000)
			require.NoError(b, err)
			b.StartTimer()
			continue
		}
		taken = append(taken, p)
		next = p + 1
	}
	require.NoError(b, h.End())
}
