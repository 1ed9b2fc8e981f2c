package softctl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

func random(seed uint64, b []byte) []byte {
	fill.Fill(b, seed)
	return b
}

func (h *host) file() []byte {
	b, err := os.ReadFile(h.path)
	require.NoError(h.t, err)
	require.Len(h.t, b, testSize, "an image is never grown or truncated")
	return b
}

// TestRoundTrip writes and reads ranges of all sizes under every shape of controller.
func TestRoundTrip(t *testing.T) {
	for _, opt := range []Options{
		{},
		{BlockSize: 1024, Stride: 1},
		{BlockSize: 2048, NoWriteCache: true},
		{BlockSize: 4096, Stride: 5, Version: Version20},
		{BlockSize: 4096, MaxTransfer: 2 << 20, OutOfOrder: true, Seed: 7},
	} {
		t.Run(fmt.Sprintf("%d stride %d", opt.BlockSize, opt.Stride), func(t *testing.T) {
			h, q := ready(t, opt)
			bs := h.c.opt.BlockSize
			want := make([]byte, testSize)
			src, srcAt := h.alloc(2 << 20)
			dst, dstAt := h.alloc(2 << 20)
			for i, n := range []int{bs, 2 * bs, 4096, 8192, 12288, 64 << 10, 128<<10 + bs, 1 << 20, h.c.opt.MaxTransfer} {
				random(uint64(i), src[:n])
				slba := uint64(i * (i + 3))
				h.expect(success, q, h.move(1, slba, uint32(n/bs), srcAt))
				copy(want[int(slba)*bs:], src[:n])
				h.expect(success, q, h.move(2, slba, uint32(n/bs), dstAt))
				require.True(t, bytes.Equal(src[:n], dst[:n]))
				h.expect(success, q, h.move(5, slba, uint32(n/bs), srcAt))
			}
			h.expect(success, q, cmdOf(0, 1))
			require.True(t, bytes.Equal(want, h.file()))
		})
	}
}

func TestIOStatuses(t *testing.T) {
	h, q := ready(t, Options{Namespaces: 2})
	blocks := uint64(testSize / 512 / 2)
	_, at := h.alloc(8192)
	for _, tc := range []struct {
		name string
		want Status
		cmd  raw
	}{
		{"read", success, rw(2, 1, 0, 16).prp(at, at+4096)},
		{"last block", success, rw(2, 2, blocks-1, 1).prp(at, 0)},
		{"past the end", lbaOutOfRange, rw(2, 2, blocks, 1).prp(at, 0)},
		{"across the end", lbaOutOfRange, rw(2, 1, blocks-1, 2).prp(at, 0)},
		{"overflow", lbaOutOfRange, rw(2, 1, ^uint64(0), 2).prp(at, 0)},
		{"overflow in bytes", lbaOutOfRange, rw(2, 1, 1<<55, 1).prp(at, 0)},
		{"write past the end", lbaOutOfRange, rw(1, 1, blocks, 1).prp(at, 0)},
		{"compare past the end", lbaOutOfRange, rw(5, 1, blocks, 1).prp(at, 0)},
		{"zeroes past the end", lbaOutOfRange, rw(8, 1, blocks-1, 2)},
		{"verify past the end", lbaOutOfRange, rw(0xc, 1, blocks-1, 2)},
		{"namespace 0", invalidNamespace, rw(2, 0, 0, 1).prp(at, 0)},
		{"namespace 3", invalidNamespace, rw(2, 3, 0, 1).prp(at, 0)},
		{"namespace all", invalidNamespace, rw(2, 0xffffffff, 0, 1).prp(at, 0)},
		{"flush", success, cmdOf(0, 1)},
		{"flush all", success, cmdOf(0, 0xffffffff)},
		{"flush 0", invalidNamespace, cmdOf(0, 0)},
		{"flush 3", invalidNamespace, cmdOf(0, 3)},
		{"flush fffffffe", invalidNamespace, cmdOf(0, 0xfffffffe)},
		{"over MDTS", invalidField, rw(2, 1, 0, 2049).prp(at, at+4096)},
		{"write over MDTS", invalidField, rw(1, 1, 0, 65536).prp(at, at+4096)},
		{"compare over MDTS", invalidField, rw(5, 1, 0, 4096).prp(at, at+4096)},
		{"verify over MDTS", invalidField, rw(0xc, 1, 0, 2049)},
		{"zeroes over MDTS", success, rw(8, 2, 0, 4096)},
		{"SGL", invalidField, rw(2, 1, 0, 1).prp(at, 0).dw(0, 2|1<<14)},
		{"SGL segment", invalidField, rw(1, 1, 0, 1).prp(at, 0).dw(0, 1|2<<14)},
		{"fused", invalidField, rw(5, 1, 0, 1).prp(at, 0).dw(0, 5|1<<8)},
		{"directive", invalidField, rw(1, 1, 0, 1).prp(at, 0).dw(12, 1<<20)},
		{"PRP1 unaligned", invalidPRPOffset, rw(2, 1, 0, 1).prp(at+1, 0)},
		{"PRP1 at a dword", success, rw(2, 1, 0, 1).prp(at+4, 0)},
		{"PRP2 with an offset", invalidPRPOffset, rw(2, 1, 0, 16).prp(at, at+4100)},
		{"PRP2 ignored", success, rw(2, 1, 0, 8).prp(at, 0xdead)},
		{"PRP1 zero", dataTransferError, rw(2, 1, 0, 1).prp(0, 0)},
		{"PRP1 unmapped", dataTransferError, rw(1, 1, 0, 1).prp(^uint64(0)&^4095, 0)},
		{"PRP2 unmapped", dataTransferError, rw(1, 1, 0, 16).prp(at, 4096)},
		{"list unmapped", dataTransferError, rw(1, 1, 0, 64).prp(at, 4096)},
		{"list at an odd address", invalidPRPOffset, rw(1, 1, 0, 64).prp(at, at+4)},
		{"write uncorrectable", invalidOpcode, cmdOf(4, 1)},
		{"reservation", invalidOpcode, cmdOf(0xd, 1)},
		{"copy", invalidOpcode, cmdOf(0x19, 1)},
		{"vendor", invalidOpcode, cmdOf(0x80, 1)},
		{"verify", success, rw(0xc, 1, 0, 2048)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.t = t
			h.expect(tc.want, q, tc.cmd)
		})
	}
	// A failed write leaves the image alone.
	require.True(t, bytes.Equal(make([]byte, testSize), h.file()))
}

func TestNamespacesAreApart(t *testing.T) {
	dir := t.TempDir()
	more := dir + "/more"
	require.NoError(t, os.WriteFile(more, make([]byte, 1<<20), 0o600))
	h := newHost(t, Options{Namespaces: 2, Images: []string{more}}).enable()
	q := h.queue(1, 16)
	b, at := h.alloc(4096)
	for nsid := uint32(1); nsid <= 3; nsid++ {
		copy(b, bytes.Repeat([]byte{byte(nsid)}, 512))
		h.expect(success, q, rw(1, nsid, 5, 1).prp(at, 0))
	}
	for nsid := uint32(1); nsid <= 3; nsid++ {
		h.expect(success, q, rw(2, nsid, 5, 1).prp(at, 0))
		require.Equal(t, bytes.Repeat([]byte{byte(nsid)}, 512), b[:512])
	}
	f := h.file()
	require.Equal(t, byte(1), f[5*512])
	require.Equal(t, byte(2), f[testSize/2+5*512])
	g, err := os.ReadFile(more)
	require.NoError(t, err)
	require.Equal(t, byte(3), g[5*512])
	h.expect(lbaOutOfRange, q, rw(2, 3, 2048, 1).prp(at, 0))
}

func TestCompare(t *testing.T) {
	h, q := ready(t, Options{})
	b, at := h.alloc(4096)
	random(1, b)
	h.expect(success, q, rw(1, 1, 3, 8).prp(at, 0))
	h.expect(success, q, rw(5, 1, 3, 8).prp(at, 0))
	b[4095] ^= 1
	h.expect(compareFailure, q, rw(5, 1, 3, 8).prp(at, 0))
}

func allocated(t *testing.T, path string) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

func TestSparseStaysSparse(t *testing.T) {
	h, q := ready(t, Options{})
	src, at := h.alloc(1 << 20)
	for i := range src {
		src[i] = 0xff
	}
	for i := range uint64(4) {
		h.expect(success, q, h.move(1, i*2048, 2048, at))
	}
	h.expect(success, q, cmdOf(0, 1))
	require.GreaterOrEqual(t, allocated(t, h.path), int64(4<<20))

	h.expect(success, q, rw(8, 1, 0, 2048)) // Write Zeroes
	ranges, rat := h.alloc(8192)
	rat += 4096 - 32 // across a page
	for i, r := range [][2]uint64{{4096, 2048}, {2048, 16}, {0, 0}} {
		e := ranges[4096-32+16*i:]
		binary.LittleEndian.PutUint32(e[4:], uint32(r[1]))
		binary.LittleEndian.PutUint64(e[8:], r[0])
	}
	h.expect(success, q, cmdOf(9, 1).dw(10, 2).dw(11, 3).prp(rat, rat+32)) // hints only: IDR, IDW
	require.GreaterOrEqual(t, allocated(t, h.path), int64(3<<20))
	h.expect(success, q, cmdOf(9, 1).dw(10, 2).dw(11, 4).prp(rat, rat+32))
	require.LessOrEqual(t, allocated(t, h.path), int64(2<<20+64<<10))
	want := bytes.Repeat([]byte{0xff}, testSize)
	clear(want[4<<20:])
	clear(want[:1<<20])
	clear(want[1<<20 : 1<<20+16*512])
	clear(want[2<<20 : 3<<20])
	require.True(t, bytes.Equal(want, h.file()))

	// One bad range: nothing is deallocated.
	binary.LittleEndian.PutUint64(ranges[4096-32+8:], 6144)
	binary.LittleEndian.PutUint32(ranges[4096-32+4:], 8)
	binary.LittleEndian.PutUint64(ranges[4096-16+8:], testSize/512-1)
	h.expect(lbaOutOfRange, q, cmdOf(9, 1).dw(10, 1).dw(11, 4).prp(rat, rat+32))
	require.True(t, bytes.Equal(want, h.file()))
	h.expect(invalidNamespace, q, cmdOf(9, 9).dw(10, 0).dw(11, 4).prp(rat, 0))
	h.expect(dataTransferError, q, cmdOf(9, 1).dw(10, 0).dw(11, 4).prp(64, 0))
	h.expect(invalidPRPOffset, q, cmdOf(9, 1).dw(10, 0).dw(11, 4).prp(rat+2, 0))

	b, st := h.identify(0, 1, 0)
	require.Equal(t, success, st)
	require.Less(t, binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[0:]), "NUSE")
}

func TestReadOnly(t *testing.T) {
	h, q := ready(t, Options{ReadOnly: true})
	_, at := h.alloc(4096)
	h.expect(success, q, rw(2, 1, 0, 8).prp(at, 0))
	h.expect(writeProtected, q, rw(1, 1, 0, 8).prp(at, 0))
	h.expect(writeProtected, q, rw(8, 1, 0, 8))
	h.expect(success, q, cmdOf(0, 1))
	b, _ := h.identify(0, 1, 0)
	require.Equal(t, byte(1), b[99], "NSATTR")
	c, err := Open(h.path, Options{ReadOnly: true, Log: quiet()})
	require.NoError(t, err, "two readers share an image")
	require.NoError(t, c.Close())
}

// double is a medium that counts, and fails when told to.
type double struct {
	media.Medium
	flushes, durable, writes, reads int
	err                             error
}

func (d *double) Read(b *media.Buffers, off int64) error {
	d.reads++
	if d.err != nil {
		return d.err
	}
	return d.Medium.Read(b, off)
}

func (d *double) Write(b *media.Buffers, off int64, durable bool, arrival uint64) error {
	d.writes++
	if durable {
		d.durable++
	}
	if d.err != nil {
		return d.err
	}
	return d.Medium.Write(b, off, durable, arrival)
}

func (d *double) Zero(off, n int64, durable bool, arrival uint64) error {
	d.writes++
	if durable {
		d.durable++
	}
	if d.err != nil {
		return d.err
	}
	return d.Medium.Zero(off, n, durable, arrival)
}

func (d *double) Flush() error {
	d.flushes++
	if d.err != nil {
		return d.err
	}
	return d.Medium.Flush()
}

func withDouble(t *testing.T, opt Options) (*host, *pair, *double) {
	h, q := ready(t, opt)
	d := &double{Medium: h.c.ns[0].medium}
	for _, ns := range h.c.ns {
		ns.medium = d
	}
	return h, q, d
}

func TestDurability(t *testing.T) {
	h, q, d := withDouble(t, Options{Namespaces: 2})
	_, at := h.alloc(4096)
	write, fua := rw(1, 1, 0, 1).prp(at, 0), rw(1, 1, 0, 1).prp(at, 0).dw(12, 1<<30)
	h.expect(success, q, write)
	require.Equal(t, 0, d.durable)
	h.expect(success, q, fua)
	require.Equal(t, 1, d.durable, "FUA")
	h.expect(success, q, rw(8, 1, 0, 1).dw(12, 1<<30))
	require.Equal(t, 2, d.durable, "Write Zeroes with FUA")
	h.expect(success, q, cmdOf(0, 1))
	require.Equal(t, 1, d.flushes)
	h.expect(success, q, cmdOf(0, 0xffffffff))
	require.Equal(t, 2, d.flushes, "two namespaces on one image are one flush")

	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0))
	require.Equal(t, 3, d.flushes, "the cache is written out when it is switched off")
	h.expect(success, q, write)
	require.Equal(t, 3, d.durable, "every write with the cache off")
	h.expect(success, q, rw(8, 1, 0, 1))
	require.Equal(t, 4, d.durable)
	h.expect(success, q, cmdOf(0, 1))
	require.Equal(t, 3, d.flushes, "nothing to flush with the cache off")
	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 1))
	h.expect(success, q, write)
	require.Equal(t, 4, d.durable)

	h.c.Write32(0x14, enableCC|1<<14)
	require.Equal(t, 4, d.flushes, "shutdown")
	require.NoError(t, h.c.Close())
	require.Equal(t, 5, d.flushes, "close")

	h, q, d = withDouble(t, Options{NoWriteCache: true})
	_, at = h.alloc(4096)
	h.expect(success, q, rw(1, 1, 0, 1).prp(at, 0))
	require.Equal(t, 1, d.durable)
}

func TestMediaErrors(t *testing.T) {
	var log bytes.Buffer
	h, q, d := withDouble(t, Options{Log: textLog(&log)})
	_, at := h.alloc(4096)
	d.err = unix.EIO
	h.expect(unrecoveredRead, q, rw(2, 1, 0, 1).prp(at, 0))
	h.expect(unrecoveredRead, q, rw(5, 1, 0, 1).prp(at, 0))
	h.expect(unrecoveredRead, q, rw(0xc, 1, 0, 1))
	h.expect(WriteFault, q, rw(1, 1, 0, 1).prp(at, 0))
	h.expect(WriteFault, q, rw(8, 1, 0, 1))
	h.expect(WriteFault, q, cmdOf(0, 1))
	require.NotContains(t, log.String(), "no space left")
	d.err = &media.LostError{Err: unix.ENOSPC} // it was accepted, and there was no room when it was to be made durable
	h.expect(WriteFault|doNotRetry, q, rw(1, 1, 0, 1).prp(at, 0).dw(12, 1<<30))
	require.NotContains(t, log.String(), "no space left for the image")
	for _, full := range []error{unix.EDQUOT, unix.EFBIG, unix.ENOSPC} {
		d.err = full
		h.expect(capacityExceeded, q, rw(1, 1, 7, 1).prp(at, 0))
		h.expect(capacityExceeded, q, rw(8, 1, 7, 1))
	}
	require.Contains(t, log.String(), "no space left for the image")
	require.Contains(t, log.String(), "lba=7")
	d.err = nil
	h.expect(success, q, rw(1, 1, 0, 1).prp(at, 0))
	require.NoError(t, os.Truncate(h.path, 4096))
	h.expect(unrecoveredRead|doNotRetry, q, rw(2, 1, 4096, 1).prp(at, 0))
}

// TestMemoryWithoutHostView moves data through a Mover, as GPU memory will need.
func TestMemoryWithoutHostView(t *testing.T) {
	m := newMemory(t, 64<<10)
	m.hidden = true
	h := newHost(t, Options{})
	_, err := h.c.Map(m, 0, m.Size())
	require.ErrorContains(t, err, "Mover")

	h = newHost(t, Options{Mover: mover{}}).enable()
	q := h.queue(1, 16)
	a, err := h.c.Map(m, 0, m.Size())
	require.NoError(t, err)
	at := uint64(a)
	random(3, m.b)
	want := bytes.Clone(m.b[:12288])
	_, list := h.alloc(4096)
	binary.LittleEndian.PutUint64(h.mem.b[list-h.base:], at+4096)
	b, hostAt := h.alloc(4096) // the last page is ordinary memory
	binary.LittleEndian.PutUint64(h.mem.b[list-h.base+8:], hostAt)
	copy(b, want[8192:])
	h.expect(success, q, rw(1, 1, 0, 24).prp(at, list))
	require.True(t, bytes.Equal(want, h.file()[:12288]))
	clear(m.b)
	clear(b)
	h.expect(success, q, rw(2, 1, 0, 24).prp(at, list))
	require.True(t, bytes.Equal(want[:8192], m.b[:8192]))
	require.True(t, bytes.Equal(want[8192:], b))
	h.expect(success, q, rw(5, 1, 0, 24).prp(at, list))

	// Queues there too.
	h.expect(success, h.admin, createCQ(2, 16, at+16384))
	h.expect(success, h.admin, createSQ(2, 16, at+32768, 2))
	p := &pair{id: 2, size: 16, phase: 1, cq: m.b[16384:], sq: m.b[32768:]}
	clear(m.b)
	for range 40 {
		h.expect(success, p, rw(2, 1, 0, 1).prp(hostAt, 0))
	}
}

// TestPipe reads several parts into memory without a host view, with pages of ordinary memory in between, while copies are under way.
func TestPipe(t *testing.T) {
	const size, pages = 5 * pipeStep, 5 * pipeStep / 4096
	h := newHost(t, Options{Mover: piped{}, MaxTransfer: 8 * pipeStep}).enable()
	q := h.queue(1, 16)
	m := newMemory(t, size)
	m.hidden = true
	a, err := h.c.Map(m, 0, m.Size())
	require.NoError(t, err)
	want := make([]byte, size)
	random(5, want)
	f, err := os.OpenFile(h.c.Name(), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(want, 0)
	require.NoError(t, err)
	_, list := h.alloc(3 * 4096)
	ordinary := map[int][]byte{}
	slot := 0
	for page := 1; page < pages; page++ {
		at := uint64(a) + uint64(page)*4096
		if page%70 == 63 || page%70 == 64 {
			ordinary[page], at = h.alloc(4096)
		}
		if slot%512 == 511 && page+1 < pages { // the list goes on on its next page
			binary.LittleEndian.PutUint64(h.mem.b[list-h.base+uint64(slot)*8:], list+uint64(slot+1)*8)
			slot++
		}
		binary.LittleEndian.PutUint64(h.mem.b[list-h.base+uint64(slot)*8:], at)
		slot++
	}
	h.expect(success, q, rw(2, 1, 0, size/512).prp(uint64(a), list))
	for page := range pages {
		got := m.b[page*4096:][:4096]
		if b, ok := ordinary[page]; ok {
			got = b
		}
		require.True(t, bytes.Equal(want[page*4096:][:4096], got), "page %d", page)
	}
}
