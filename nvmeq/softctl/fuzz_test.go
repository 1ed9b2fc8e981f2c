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
	for _, op := range []uint8{0, 1, 2, 4, 5, 6, 8, 9, 0xa, 0xc} {
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
		h.expect(success, q, rw(2, 1, 0, 1).prp(h.base+512<<10, 0))
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, int64(64<<10), st.Size())
	})
}

// TestRandomCommands is FuzzCommands' long run: one controller, commands of which most fields are nearly right.
func TestRandomCommands(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := newHost(t, Options{Queues: 6, Depth: 64, OutOfOrder: seed == 1, Namespaces: 2}).enable()
		q := h.queue(1, 64)
		h.alloc(8 << 20)
		pick := func(v ...uint32) uint32 { return v[r.IntN(len(v))] }
		address := func() uint64 {
			at := h.base + uint64(r.IntN(16<<20+4096))
			switch r.IntN(8) {
			case 0:
				return r.Uint64()
			case 1:
				return at &^ 3
			case 2:
				return at &^ 7
			}
			return at &^ 4095
		}
		for range 3000 {
			p, op := h.admin, pick(0, 1, 2, 4, 5, 6, 8, 9, 10, r.Uint32()&0xff)
			if r.IntN(2) == 0 {
				p, op = q, pick(0, 1, 2, 5, 8, 9, 12, r.Uint32()&0xff)
			}
			c := cmdOf(uint8(op), pick(0, 1, 1, 1, 2, 3, nsidAll, r.Uint32())).prp(address(), address())
			c = c.dw(10, pick(uint32(r.IntN(20000)), uint32(r.IntN(8))|uint32(r.IntN(70))<<16, r.Uint32()))
			c = c.dw(11, pick(0, 0, 0, 1|uint32(r.IntN(8))<<16, r.Uint32()))
			c = c.dw(12, pick(0, uint32(r.IntN(2050)), r.Uint32()))
			if r.IntN(50) == 0 {
				c[0] |= r.Uint32() & 0xffff00
			}
			if op == opDeleteSQ && c[10]&0xffff == 1 && p == h.admin {
				continue // the queue that the test uses
			}
			h.put(p, c)
			h.ring(p)
			for did := true; did; { // disorder takes several steps
				did = false
				for id := range uint16(8) {
					did = h.c.Step(id) || did
				}
			}
			// The queues' own memory may have been overwritten by data: take the head from the controller's side.
			p.head = p.tail
			cq := h.c.cq[p.id]
			cq.mu.Lock() // a flush may be completing
			tail := cq.tail
			cq.mu.Unlock()
			h.store(0x1000+4*(2*int64(p.id)+1), tail)
			if h.c.Read32(regCSTS)&cstsFatal != 0 {
				t.Fatal("the controller failed")
			}
		}
		require.Len(t, h.file(), testSize)
		fields := h.c.Counters()
		require.Greater(t, fields[1].Commands, fields[1].Failed, "some succeeded")
		require.Greater(t, fields[1].Failed, uint64(100))
	}
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
		h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))
	})
}
