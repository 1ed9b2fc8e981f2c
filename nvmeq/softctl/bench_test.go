package softctl

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkCommand is one command from doorbell to completion, image in RAM.
func BenchmarkCommand(b *testing.B) {
	for _, tc := range []struct {
		name   string
		op     uint8
		blocks uint32
		batch  int
	}{{"read 4K", 2, 8, 1}, {"read 4K, 32 a doorbell", 2, 8, 32}, {"write 4K", 1, 8, 1}, {"read 1M", 2, 2048, 1}, {"write 1M", 1, 2048, 1}} {
		b.Run(tc.name, func(b *testing.B) {
			f, err := os.CreateTemp("/dev/shm", "softctl")
			require.NoError(b, err)
			defer os.Remove(f.Name())
			require.NoError(b, f.Truncate(testSize))
			require.NoError(b, f.Close())
			h := newHostOn(b, f.Name(), Options{}).enable()
			q := h.queue(1, 64)
			_, at := h.alloc(1 << 20)
			all := make([]byte, 1<<20)
			copy(h.mem.b[at-h.base:], random(1, all))
			for i := range uint64(8) {
				h.expect(success, q, h.move(1, i*2048, 2048, at))
			}
			p1, p2 := h.transfer(at, int(tc.blocks)*512)
			b.SetBytes(int64(tc.blocks) * 512)
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				h.put(q, rw(tc.op, 1, n*uint64(tc.blocks)%(testSize/512), tc.blocks).prp(p1, p2))
				if n++; n%uint64(tc.batch) != 0 {
					continue
				}
				h.ring(q)
				h.c.Step(1)
				for range tc.batch {
					if e, ok := h.poll(q); !ok || e.status() != success {
						b.Fatal(fmt.Sprint("completion ", e, ok))
					}
				}
			}
		})
	}
}
