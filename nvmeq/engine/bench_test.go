package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// BenchmarkDo measures one caller's transfers, and a batch of 32 of 4 KiB.
func BenchmarkDo(b *testing.B) {
	r := newRig(b, softctl.Options{}, engine.Config{})
	c := r.Chunk(b, 1<<20)
	for _, op := range []nvme.Opcode{nvme.IORead, nvme.IOWrite} {
		for _, n := range []int64{4096, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op.Name(false), n), func(b *testing.B) {
				b.SetBytes(n)
				b.ReportAllocs()
				cmds := []engine.Command{r.RW(op, 0, c, 0, n)}
				for i := 0; b.Loop(); i++ {
					cmds[0].SLBA = uint64(i%8) * 2048
					if err := r.Engine.Do(engine.AnyLane, cmds); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("%s/32x4096", op.Name(false)), func(b *testing.B) {
			b.SetBytes(32 * 4096)
			b.ReportAllocs()
			cmds := make([]engine.Command, 32)
			for i := range cmds {
				cmds[i] = r.RW(op, uint64(i)*8, c, int64(i)*4096, 4096)
			}
			for b.Loop() {
				require.NoError(b, r.Engine.Do(engine.AnyLane, cmds))
			}
		})
	}
	b.Run("Flush", func(b *testing.B) {
		cmds := []engine.Command{{Op: nvme.IOFlush, NSID: 1}}
		for b.Loop() {
			require.NoError(b, r.Engine.Do(engine.AnyLane, cmds))
		}
	})
}
