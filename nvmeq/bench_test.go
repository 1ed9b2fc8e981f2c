package nvmeq_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// BenchmarkDo measures one caller's transfers, and a batch of 32 of 4 KiB.
func BenchmarkDo(b *testing.B) {
	r := newRig(b, softctl.Options{}, nvmeq.EngineConfig{})
	c := r.chunk(b, 1<<20)
	for _, op := range []nvmeq.Opcode{nvmeq.IORead, nvmeq.IOWrite} {
		for _, n := range []int64{4096, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op.Name(false), n), func(b *testing.B) {
				b.SetBytes(n)
				b.ReportAllocs()
				cmds := []nvmeq.Command{r.rw(op, 0, c, 0, n)}
				for i := 0; b.Loop(); i++ {
					cmds[0].SLBA = uint64(i%8) * 2048
					if err := r.eng.Do(nvmeq.AnyLane, cmds); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("%s/32x4096", op.Name(false)), func(b *testing.B) {
			b.SetBytes(32 * 4096)
			b.ReportAllocs()
			cmds := make([]nvmeq.Command, 32)
			for i := range cmds {
				cmds[i] = r.rw(op, uint64(i)*8, c, int64(i)*4096, 4096)
			}
			for b.Loop() {
				require.NoError(b, r.eng.Do(nvmeq.AnyLane, cmds))
			}
		})
	}
	b.Run("Flush", func(b *testing.B) {
		cmds := []nvmeq.Command{{Op: nvmeq.IOFlush, NSID: 1}}
		for b.Loop() {
			require.NoError(b, r.eng.Do(nvmeq.AnyLane, cmds))
		}
	})
}
