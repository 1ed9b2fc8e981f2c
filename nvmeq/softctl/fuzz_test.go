package softctl

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCommands feeds whatever bytes there are to the admin queue and an I/O queue. Nothing may panic or touch memory
// outside the mappings (which lie between pages that cannot be touched); the image keeps its size; and after a reset
// the controller works.
func FuzzCommands(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, op := range []uint8{0, 1, 2, 4, 5, 6, 8, 9, 0xa, 0xc, 0x7c} {
		b := make([]byte, 6*64)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		for i := 0; i < len(b); i += 64 {
			b[i], b[i+1] = op, 0
			binary.LittleEndian.PutUint32(b[i+4:], 1)
			binary.LittleEndian.PutUint64(b[i+24:], uint64(r.IntN(1<<24)))
			binary.LittleEndian.PutUint64(b[i+32:], uint64(r.IntN(1<<24)))
			binary.LittleEndian.PutUint32(b[i+40:], uint32(r.IntN(32)))
			binary.LittleEndian.PutUint32(b[i+44:], 0)
		}
		f.Add(b, uint8(0x55))
		f.Add(b, uint8(0))
	}
	f.Fuzz(func(t *testing.T, in []byte, which uint8) {
		path := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(path, make([]byte, 64<<10), 0o600))
		c, err := Open(path, Options{Queues: 4, Depth: 16, Log: quiet()})
		require.NoError(t, err)
		defer c.Close()
		h := &host{t: t, c: c, path: path, mem: newMemory(t, 1<<20), stride: 4}
		a, err := c.Map(h.mem, 0, h.mem.Size())
		require.NoError(t, err)
		h.base = uint64(a)
		h.enable()
		q := h.queue(1, 16)
		for i := 0; len(in) >= 64 && i < 64; i, in = i+1, in[64:] {
			p := h.admin
			if which>>(i%8)&1 != 0 {
				p = q
			}
			e := in[:64]
			for _, at := range []int{24, 32} { // addresses that are small are meant for the mapping
				if v := binary.LittleEndian.Uint64(e[at:]); v < 1<<24 {
					v = h.base + v%(uint64(len(h.mem.b))+8192)
					binary.LittleEndian.PutUint64(p.sq[int(p.tail)*64+at:], v)
				} else {
					copy(p.sq[int(p.tail)*64+at:], e[at:at+8])
				}
			}
			copy(p.sq[int(p.tail)*64:], e[:24])
			copy(p.sq[int(p.tail)*64+40:], e[40:])
			p.tail = (p.tail + 1) % p.size
			h.ring(p)
			for id := range uint16(6) {
				c.Step(id)
			}
			h.store(0x1000+4*(2*int64(p.id)+1), uint32(e[63])%p.size)
		}
		c.Write32(regCC, 0)
		h.admin, h.used = nil, 0
		h.enable()
		q = h.queue(1, 16)
		h.expect(Success, q, rw(2, 1, 0, 1).prp(h.base+512<<10, 0))
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, int64(64<<10), st.Size())
	})
}

// FuzzRegisters writes anything anywhere in the BAR.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0x14, 0, 1, 0, 0x46, 0, 0x24, 0, 0x1f, 0, 0x1f, 0, 0x14, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		h := newHost(t, Options{}).enable()
		h.queue(1, 16)
		for ; len(in) >= 6; in = in[6:] {
			h.c.Write32(int64(binary.LittleEndian.Uint16(in)), binary.LittleEndian.Uint32(in[2:]))
			for id := range uint16(3) {
				h.c.Step(id)
			}
		}
		require.NoError(t, h.c.Reset())
		h.enable()
		q := h.queue(1, 16)
		h.expect(Success, q, rw(2, 1, 0, 1).prp(h.base, 0))
	})
}
