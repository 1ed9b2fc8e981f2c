package partition

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest"
)

// TestConform: a partition is a block device like any other, and its neighbours stay as they are.
func TestConform(t *testing.T) {
	const first, size = 2048 * 512, 16 << 20
	blockdevtest.Conform(t, func(t *testing.T) blockdev.Device {
		disk := blockdev.NewMem(first+size+4096, 512)
		t.Cleanup(func() {
			b := make([]byte, first)
			_, err := disk.File().ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, make([]byte, first), b, "before the partition")
			_, err = disk.File().ReadAt(b[:4096], first+size)
			require.NoError(t, err)
			require.Equal(t, make([]byte, 4096), b[:4096], "behind it")
			require.NoError(t, disk.Close())
		})
		return Open(disk, Part{Number: 1, First: 2048, Blocks: size / 512})
	})
}

// TestErrors: an error says where in the partition it was.
func TestErrors(t *testing.T) {
	disk := blockdev.NewMem(16<<20, 512)
	defer disk.Close()
	d := Open(disk, Part{Number: 1, First: 2048, Blocks: 4096})
	disk.Inject(blockdev.Fault{Op: blockdev.OpWrite, Off: (2048 + 8) * 512, Len: 512})
	b, err := d.Alloc(4096)
	require.NoError(t, err)
	defer b.Release()
	require.NoError(t, d.Write(0, false, b.Slice(0, 4096)))
	err = d.Write(8*512, false, b.Slice(0, 512))
	var e *blockdev.Error
	require.ErrorAs(t, err, &e)
	require.EqualValues(t, 8, e.LBA)
	require.ErrorIs(t, err, blockdev.ErrFault)
	require.ErrorIs(t, d.Write(4096*512, false, b.Slice(0, 512)), blockdev.ErrInvalid)
}

// table makes a disk of 32 MiB by sfdisk.
func table(t *testing.T, script string) *blockdev.TestDevice {
	t.Helper()
	sfdisk, err := exec.LookPath("sfdisk")
	if err != nil {
		if sfdisk, err = exec.LookPath("/sbin/sfdisk"); err != nil {
			t.Skip("SKIPPED: needs sfdisk: make deps installs it")
		}
	}
	path := t.TempDir() + "/disk"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 32<<20))
	c := exec.Command(sfdisk, "-q", path)
	c.Stdin = strings.NewReader(script)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	d, err := blockdev.OpenFile(path, 512)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

const gptScript = `label: gpt
start=2048, size=8192, uuid=6F1B2C3D-0001-4002-8003-0123456789AB, name="first one"
start=20480, size=4096, uuid=6f1b2c3d-0002-4002-8003-0123456789ab, name="größer"
`

var gptWant = []Part{
	{1, 2048, 8192, "6f1b2c3d-0001-4002-8003-0123456789ab", "first one"},
	{2, 20480, 4096, "6f1b2c3d-0002-4002-8003-0123456789ab", "größer"},
}

// TestGPT: what sfdisk wrote is read; with one copy damaged the other is taken, with both the error says how.
func TestGPT(t *testing.T) {
	d := table(t, gptScript)
	got, err := Read(d)
	require.NoError(t, err)
	require.Equal(t, &Table{Parts: gptWant}, got)
	_, err = got.Find(3)
	require.ErrorContains(t, err, "there is no partition 3; name one of those there are: 1, 2")

	spoil := func(off int64) (repair func()) {
		var b [1]byte
		_, err := d.File().ReadAt(b[:], off)
		require.NoError(t, err)
		_, err = d.File().WriteAt([]byte{b[0] ^ 0x10}, off)
		require.NoError(t, err)
		return func() { _, err := d.File().WriteAt(b[:], off); require.NoError(t, err) }
	}
	for off, want := range map[int64]string{512: "no signature", 512 + 56: "has checksum", 512 + 16: "has checksum", 2*512 + 40: "the entries of the header in block 1 have checksum"} {
		repair := spoil(off)
		got, err := Read(d)
		require.NoError(t, err)
		require.Equal(t, gptWant, got.Parts)
		require.Contains(t, got.Damage, want)
		second := spoil(32<<20 - 512 + 40)
		_, err = Read(d)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "and so is its copy at the end of the disk")
		second()
		repair()
	}
	d.Inject(blockdev.Fault{Op: blockdev.OpRead, Off: 512, Len: 512, Times: 1})
	got, err = Read(d)
	require.NoError(t, err)
	require.Contains(t, got.Damage, "injected fault")
}

// TestGPTRefused: a table whose checksums are right is refused all the same if its partitions overlap, or leave the part of the disk that
// it gives them.
func TestGPTRefused(t *testing.T) {
	const low, high = 2048, 32<<20/512 - 34 // sfdisk's first block, and the last before the copy
	for _, c := range []struct {
		second [2]uint64 // first and last block of partition 2
		want   string
	}{
		{[2]uint64{10240, high}, ""},
		{[2]uint64{10239, 20000}, "partitions 1 and 2 overlap"},
		{[2]uint64{low, 10239}, "partitions 1 and 2 overlap"},
		{[2]uint64{low, low}, "partitions 1 and 2 overlap"},
		{[2]uint64{4096, 5000}, "partitions 1 and 2 overlap"},
		{[2]uint64{10240, high + 1}, "partition 2 has the blocks 10240 to 65503, and may have"},
		{[2]uint64{33, 100}, "partition 2 has the blocks 33 to 100, and may have"},
		{[2]uint64{20000, 10240}, "partition 2 has the blocks 20000 to 10240, and may have"},
		{[2]uint64{10240, 1<<64 - 1}, "partition 2 has the blocks 10240 to 18446744073709551615, and may have"},
	} {
		d := table(t, gptScript)
		for _, at := range []int64{512, 32<<20 - 512} {
			h := make([]byte, 512)
			_, err := d.File().ReadAt(h, at)
			require.NoError(t, err)
			le := binary.LittleEndian
			array := int64(le.Uint64(h[72:])) * 512
			b := make([]byte, le.Uint32(h[80:])*le.Uint32(h[84:]))
			_, err = d.File().ReadAt(b, array)
			require.NoError(t, err)
			le.PutUint64(b[gptEntrySize+32:], c.second[0])
			le.PutUint64(b[gptEntrySize+40:], c.second[1])
			le.PutUint32(h[88:], sum(b))
			le.PutUint32(h[16:], 0)
			le.PutUint32(h[16:], sum(h[:le.Uint32(h[12:])]))
			for off, b := range map[int64][]byte{at: h, array: b} {
				_, err = d.File().WriteAt(b, off)
				require.NoError(t, err)
			}
		}
		got, err := Read(d)
		if c.want == "" {
			require.NoError(t, err)
			require.Empty(t, got.Damage)
			continue
		}
		require.ErrorContains(t, err, "the GPT is damaged: "+c.want)
		require.ErrorContains(t, err, "and so is its copy at the end of the disk: "+c.want)
	}
}

// TestDOS: a DOS table is read, but for extended partitions; a file system's first block is no table.
func TestDOS(t *testing.T) {
	d := table(t, "label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=8192\nstart=20480, size=4096\n")
	got, err := Read(d)
	require.NoError(t, err)
	require.Equal(t, &Table{Parts: []Part{{Number: 1, First: 2048, Blocks: 8192, ID: "1234abcd-01"}, {Number: 2, First: 20480, Blocks: 4096, ID: "1234abcd-02"}}}, got)
	_, err = Read(table(t, "label: dos\nstart=2048, size=8192, type=5\n"))
	require.ErrorContains(t, err, "is an extended one")

	empty := blockdev.NewMem(1<<20, 512)
	defer empty.Close()
	_, err = Read(empty)
	require.ErrorContains(t, err, "there is no partition table")
}

// FuzzGPT: no table makes Read panic, or gives a partition outside the disk.
func FuzzGPT(f *testing.F) {
	f.Add([]byte("EFI PART"), uint32(128), uint32(128))
	f.Fuzz(func(t *testing.T, entries []byte, n, each uint32) {
		const blocks = 256
		d := blockdev.NewMem(blocks*512, 512)
		defer d.Close()
		b := make([]byte, blocks*512)
		b[510], b[511], b[446+4] = 0x55, 0xaa, dosGPT
		copy(b[1024:], entries)
		h := b[512:1024]
		copy(h, gptSignature)
		le := binary.LittleEndian
		le.PutUint32(h[12:], gptHeaderSize)
		le.PutUint64(h[24:], 1)
		le.PutUint64(h[40:], 34)
		le.PutUint64(h[48:], blocks-34)
		le.PutUint64(h[72:], 2)
		le.PutUint32(h[80:], n)
		le.PutUint32(h[84:], each)
		if size := uint64(n) * uint64(each); size <= uint64(len(b)-1024) {
			le.PutUint32(h[88:], sum(b[1024:1024+size]))
		}
		le.PutUint32(h[16:], sum(h[:gptHeaderSize]))
		_, err := d.File().WriteAt(b, 0)
		require.NoError(t, err)
		got, err := Read(d)
		if err != nil {
			return
		}
		for _, p := range got.Parts {
			require.LessOrEqual(t, uint64(p.First)+uint64(p.Blocks), uint64(blocks), fmt.Sprint(p))
		}
	})
}

func sum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }
