package partition

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"strconv"
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
	require.Equal(t, disk.Info().Name+"-part1", d.Info().Name)
	require.ErrorIs(t, err, blockdev.ErrFault)
	require.ErrorIs(t, d.Write(4096*512, false, b.Slice(0, 512)), blockdev.ErrInvalid)
}

// table makes a disk of 32 MiB by sfdisk.
func table(t *testing.T, script string) *blockdev.TestDevice {
	t.Helper()
	d, _ := tableOf(t, 512, script)
	return d
}

// program is where one of util-linux's is.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath("/sbin/" + name); err != nil {
			t.Skipf("SKIPPED: needs %s: make deps installs it", name)
		}
	}
	return path
}

// tableOf makes a disk of 32 MiB with blocks of a size by sfdisk, which asks the device for that; node is what util-linux's programs take for it.
func tableOf(t *testing.T, block int64, script string, options ...string) (d *blockdev.TestDevice, node string) {
	t.Helper()
	path := t.TempDir() + "/disk"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 32<<20))
	node = path
	if block > 512 {
		if os.Getuid() != 0 {
			t.Skip("SKIPPED: loop devices need root")
		}
		out, err := exec.Command(program(t, "losetup"), "-f", "--show", "-b", fmt.Sprint(block), path).CombinedOutput()
		if err != nil {
			t.Skipf("SKIPPED: no loop device: %s", out)
		}
		node = strings.TrimSpace(string(out))
		t.Cleanup(func() { exec.Command("losetup", "-d", node).Run() })
	}
	sfdisk(t, node, script, options...)
	d, err := blockdev.OpenFile(path, block)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d, node
}

func sfdisk(t *testing.T, node, script string, options ...string) {
	t.Helper()
	c := exec.Command(program(t, "sfdisk"), append([]string{"-q", "--no-reread", "--no-tell-kernel"}, append(options, node)...)...)
	c.Stdin = strings.NewReader(script)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// libblkid is what util-linux reads of a disk's table, extended partitions aside.
func libblkid(t *testing.T, node string, block int64) (all []Part) {
	t.Helper()
	out, err := exec.Command(program(t, "partx"), "-g", "-r", "-S", fmt.Sprint(block), "-o", "NR,START,SECTORS,UUID,TYPE,NAME", node).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		p := Part{ID: f[3]}
		_, err := fmt.Sscan(strings.Join(f[:3], " "), &p.Number, &p.First, &p.Blocks)
		require.NoError(t, err, line)
		if f[4] == "0x5" || f[4] == "0xf" || f[4] == "0x85" {
			continue
		}
		if len(f) > 5 {
			p.Name, err = strconv.Unquote(`"` + f[5] + `"`)
			require.NoError(t, err)
		}
		p.First, p.Blocks = p.First*512/blockdev.LBA(block), p.Blocks*512/blockdev.Blocks(block)
		all = append(all, p)
	}
	return all
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
	got, err = Read(table(t, "label: gpt\n"))
	require.NoError(t, err)
	_, err = got.Find(1)
	require.EqualError(t, err, "there is no partition 1: the partition table is empty")

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

// TestGPTRefused: partitions that overlap, or leave the part of the disk that the table gives them, are refused; those beside them are there.
func TestGPTRefused(t *testing.T) {
	const low, high = 2048, 32<<20/512 - 34 // sfdisk's first block, and the last before the copy
	for _, c := range []struct {
		second [2]uint64 // first and last block of partition 2
		want   string
		both   bool
	}{
		{[2]uint64{10240, high}, "", false},
		{[2]uint64{10239, 20000}, "partition 1 and partition 2 overlap", true},
		{[2]uint64{low, 10239}, "partition 1 and partition 2 overlap", true},
		{[2]uint64{low, low}, "partition 1 and partition 2 overlap", true},
		{[2]uint64{4096, 5000}, "partition 1 and partition 2 overlap", true},
		{[2]uint64{10240, high + 1}, "partition 2 has the blocks 10240 to 65503, and may have", false},
		{[2]uint64{low, high + 1}, "partition 2 has the blocks 2048 to 65503, and may have", false}, // nobody uses it
		{[2]uint64{33, 100}, "partition 2 has the blocks 33 to 100, and may have", false},
		{[2]uint64{20000, 10240}, "partition 2 has the blocks 20000 to 10240, and may have", false},
		{[2]uint64{10240, 1<<64 - 1}, "partition 2 has the blocks 10240 to 18446744073709551615, and may have", false},
		{[2]uint64{0, 1<<64 - 1}, "partition 2 has the blocks 0 to 18446744073709551615, and may have", false},
	} {
		d := table(t, gptScript+"start=40960, size=100\n")
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
			if c.want == "" {
				clear(b[2*gptEntrySize:])
			}
			le.PutUint32(h[88:], sum(b))
			le.PutUint32(h[16:], 0)
			le.PutUint32(h[16:], sum(h[:le.Uint32(h[12:])]))
			for off, b := range map[int64][]byte{at: h, array: b} {
				_, err = d.File().WriteAt(b, off)
				require.NoError(t, err)
			}
		}
		got, err := Read(d)
		require.NoError(t, err)
		require.Empty(t, got.Damage)
		_, err = got.Find(2)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "partition 2 cannot be used: "+c.want)
		_, err = got.Find(3)
		require.NoError(t, err)
		if _, err = got.Find(1); c.both {
			require.ErrorContains(t, err, "partition 1 cannot be used: "+c.want)
		} else {
			require.NoError(t, err)
		}
		_, err = got.Find(4)
		require.ErrorContains(t, err, "there is no partition 4; name one of those there are: ")
	}
}

// TestDOS: a DOS table is read; a file system's first block is no table.
func TestDOS(t *testing.T) {
	d := table(t, "label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=8192\nstart=20480, size=4096\n")
	got, err := Read(d)
	require.NoError(t, err)
	require.Equal(t, &Table{Parts: []Part{{Number: 1, First: 2048, Blocks: 8192, ID: "1234abcd-01"}, {Number: 2, First: 20480, Blocks: 4096, ID: "1234abcd-02"}}}, got)

	empty := blockdev.NewMem(1<<20, 512)
	defer empty.Close()
	_, err = Read(empty)
	require.ErrorContains(t, err, "there is no partition table")
}

// TestSame: what util-linux reads of a disk is what Read reads.
func TestSame(t *testing.T) {
	const dos = "label: dos\nlabel-id: 0x1234abcd\n"
	for name, c := range map[string]struct {
		script string
		parts  int
	}{
		"gpt":           {gptScript, 2},
		"dos":           {dos + "size=4M\nsize=4M, type=c\n", 2},
		"logical":       {dos + "size=4M\nsize=20M, type=5\nsize=1M\n\nsize=2M\nsize=3M\nsize=1M\nsize=1M\nsize=1M\nsize=1M\n", 8},
		"extended last": {dos + "size=1M\nsize=1M\nsize=1M\nsize=20M, type=f\nsize=2M\nsize=3M\n", 5},
		"one logical":   {dos + "size=20M, type=85\n5: size=2M\n", 1},
	} {
		for _, block := range []int64{512, 4096} {
			t.Run(fmt.Sprint(name, block), func(t *testing.T) {
				d, node := tableOf(t, block, scaled(c.script, block))
				got, err := Read(d)
				require.NoError(t, err)
				require.Equal(t, libblkid(t, node, block), got.Parts)
				require.Len(t, got.Parts, c.parts)
			})
		}
	}
}

// scaled leaves the places to sfdisk where the blocks are larger.
func scaled(script string, block int64) string {
	if block > 512 {
		return strings.NewReplacer("start=2048, size=8192", "size=4M", "start=20480, size=4096", "size=2M").Replace(script)
	}
	return script
}

// TestHybrid: a GPT counts whatever else the DOS table beside it has, in any place; without a GPT there is nothing to be read.
func TestHybrid(t *testing.T) {
	for _, script := range []string{"start=1, size=2047, type=ee\nstart=2048, size=8192, type=83, bootable\n", "start=2048, size=8192, type=83\nstart=1, size=2047, type=ee\n"} {
		d, node := tableOf(t, 512, gptScript)
		sfdisk(t, node, script, "--label-nested", "dos")
		got, err := Read(d)
		require.NoError(t, err)
		require.Equal(t, &Table{Parts: gptWant}, got)
		_, err = d.File().WriteAt(make([]byte, 512), 512)
		require.NoError(t, err)
		got, err = Read(d)
		require.NoError(t, err)
		require.Equal(t, gptWant, got.Parts)
		require.Contains(t, got.Damage, "no signature")
		_, err = d.File().WriteAt(make([]byte, 512), 32<<20-512)
		require.NoError(t, err)
		_, err = Read(d)
		require.ErrorContains(t, err, "the GPT is damaged")
	}
}

// TestOtherBlocks: a copy of a disk on one with blocks of another size is told so.
func TestOtherBlocks(t *testing.T) {
	d, _ := tableOf(t, 4096, scaled(gptScript, 4096))
	other, err := blockdev.OpenFile(d.Path(), 512)
	require.NoError(t, err)
	defer other.Close()
	_, err = Read(other)
	require.ErrorContains(t, err, "the GPT is of a disk with blocks of 4096 bytes, and those of this one have 512")
	small := table(t, gptScript)
	large, err := blockdev.OpenFile(small.Path(), 4096)
	require.NoError(t, err)
	defer large.Close()
	_, err = Read(large)
	require.ErrorContains(t, err, "the GPT is of a disk with blocks of 512 bytes, and those of this one have 4096")
}

const logicalScript = "label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=4096\nstart=8192, size=40960, type=5\nstart=10240, size=2048\nstart=14336, size=2048\nstart=18432, size=2048\n"

// TestDOSRefused: a partition that leaves its room, or has blocks that another or a table has, is refused, and a chain that leads astray ends there. What is beside
// and before them is there.
func TestDOSRefused(t *testing.T) {
	const ext = 8192
	le := binary.LittleEndian
	entry := func(kind byte, first, n uint32) []byte {
		b := make([]byte, 16)
		b[4] = kind
		le.PutUint32(b[8:], first)
		le.PutUint32(b[12:], n)
		return b
	}
	for name, c := range map[string]struct {
		table   int64 // block of the table that is changed
		slot    int
		entry   []byte
		there   []int
		refused []int
		want    string // of the first refused, or else of a partition that is in no list
	}{
		"itself":             {12288, 1, entry(5, 12288-ext, 4096), []int{1, 5, 6}, nil, "the table in block 12288 and the table in block 12288 overlap"},
		"the first":          {12288, 1, entry(5, 0, 4096), []int{1, 5, 6}, nil, "the table in block 8192 and the table in block 8192 overlap"},
		"over a table":       {8192, 0, entry(0x83, 2048, 4096), []int{1}, []int{5}, "partition 5 and the table in block 12288 overlap"},
		"over its own table": {12288, 0, entry(0x83, 0, 4096), []int{1, 5, 7}, []int{6}, "the table in block 12288 and partition 6 overlap"},
		"over a partition":   {12288, 0, entry(0x83, 2048, 8192), []int{1, 5}, []int{6}, "partition 6 and the table in block 16384 overlap"},
		"into a partition":   {12288, 1, entry(5, 2048+1, 2048), []int{1, 6}, []int{5}, "partition 5 and the table in block 10241 overlap"},
		"table outside":      {12288, 1, entry(5, 40960, 2048), []int{1, 5, 6}, nil, "the table in block 49152 has the blocks 49152 to 49152, and may have 8192 to 49151"},
		"far outside":        {12288, 1, entry(5, 1<<32-1, 1), []int{1, 5, 6}, nil, "and may have 8192 to 49151"},
		"partition outside":  {16384, 0, entry(0x83, 2048, 40960), []int{1, 5, 6}, []int{7}, "partition 7 has the blocks 18432 to 59391, and may have 8192 to 49151"},
		"one in the middle":  {12288, 0, entry(0x83, 2048, 1<<31), []int{1, 5, 7}, []int{6}, "partition 6 has the blocks 14336 to 2147497983, and may have 8192 to 49151"},
		"partition far away": {16384, 0, entry(0x83, 1<<32-1, 1<<32-1), []int{1, 5, 6}, []int{7}, "partition 7 has the blocks 4294983679 to"},
		"no table":           {12288, 1, entry(5, 30000-ext, 2048), []int{1, 5, 6}, nil, "the extended partition 2: its chain leads to block 30000, where there is no table"},
		"two ways":           {8192, 2, entry(5, 16384-ext, 2048), []int{1, 5}, nil, "the table in block 8192 leads to two others"},
		"primary":            {0, 2, entry(0x83, 5000, 2048), []int{5, 6, 7}, []int{1, 3}, "partition 1 and partition 3 overlap"},
		"three":              {0, 2, entry(0x83, 5000, 8192), nil, []int{1, 3}, "partition 1 and partition 3 overlap"},
		"outside the disk":   {0, 1, entry(5, 8192, 65536), []int{1}, nil, "the extended partition 2: partition 2 has the blocks 8192 to 73727, and may have 1 to 65535"},
		"over the table":     {0, 2, entry(0x83, 0, 8), []int{1, 5, 6, 7}, []int{3}, "partition 3 has the blocks 0 to 7"},
	} {
		t.Run(name, func(t *testing.T) {
			d := table(t, logicalScript)
			_, err := d.File().WriteAt(c.entry, c.table*512+446+16*int64(c.slot))
			require.NoError(t, err)
			got, err := Read(d)
			require.NoError(t, err)
			var there, refused []int
			for _, p := range got.Parts {
				there = append(there, p.Number)
			}
			for _, p := range got.Refused {
				refused = append(refused, p.Number)
			}
			require.Equal(t, c.there, there)
			require.Equal(t, c.refused, refused)
			asked := 9
			if len(refused) > 0 {
				asked = refused[0]
			}
			_, err = got.Find(asked)
			require.ErrorContains(t, err, c.want)
		})
	}
	none := table(t, logicalScript)
	_, err := none.File().WriteAt(append([]byte{0x7f}, make([]byte, 15)...), 446+16*3)
	require.NoError(t, err)
	_, err = Read(none)
	require.ErrorContains(t, err, "there is no partition table: entry 4 begins with 0x7f")

	d := table(t, logicalScript)
	got, err := Read(d)
	require.NoError(t, err)
	require.Len(t, got.Parts, 4)
	_, err = got.Find(2)
	require.ErrorContains(t, err, "partition 2 is an extended one, which only holds others; name one of those there are: 1, 5, 6, 7")
	for _, slot := range []int64{2, 3} { // what others left there
		_, err = d.File().WriteAt(entry(0x83, 1<<30, 1<<30), 12288*512+446+16*slot)
		require.NoError(t, err)
	}
	same, err := Read(d)
	require.NoError(t, err)
	require.Equal(t, got, same)
	require.Equal(t, libblkid(t, d.Path(), 512), same.Parts)

	_, err = d.File().WriteAt(entry(0x83, 0, 0), 446+16*3) // an entry of no blocks is none
	require.NoError(t, err)
	same, err = Read(d)
	require.NoError(t, err)
	require.Equal(t, got, same)
	require.Equal(t, libblkid(t, d.Path(), 512), same.Parts)

	d.Inject(blockdev.Fault{Op: blockdev.OpRead, Off: 16384 * 512, Len: 512, Times: 1})
	same, err = Read(d)
	require.NoError(t, err)
	require.Equal(t, got.Parts[:3], same.Parts)
	_, err = same.Find(7)
	require.ErrorIs(t, err, blockdev.ErrFault)
	require.ErrorContains(t, err, "whether there is a partition 7 cannot be said: the extended partition 2")

	_, err = Read(table(t, "label: dos\nstart=2048, size=8192, type=5\n"))
	require.ErrorContains(t, err, "the partition table is empty")
	d = table(t, "label: dos\nstart=2048, size=8192, type=5\nstart=20480, size=1000\n")
	_, err = d.File().WriteAt(make([]byte, 512), 2048*512) // as fdisk of old left it
	require.NoError(t, err)
	got, err = Read(d)
	require.NoError(t, err)
	require.Len(t, got.Parts, 1)
}

// TestLongChain: a chain has an end.
func TestLongChain(t *testing.T) {
	d := table(t, "label: dos\nstart=2048, size=40960, type=5\nstart=45056, size=1000\n")
	le := binary.LittleEndian
	tables := func(n int) {
		for i := range int64(n) {
			b := make([]byte, 512)
			b[446+4], b[462+4] = 0x83, 5
			le.PutUint32(b[446+8:], 1)
			le.PutUint32(b[446+12:], 1)
			if i < int64(n)-1 {
				le.PutUint32(b[462+8:], uint32(2*(i+1)))
				le.PutUint32(b[462+12:], 2)
			}
			b[510], b[511] = 0x55, 0xaa
			_, err := d.File().WriteAt(b, (2048+2*i)*512)
			require.NoError(t, err)
		}
	}
	tables(maxTables)
	got, err := Read(d)
	require.NoError(t, err)
	require.Len(t, got.Parts, maxTables+1)
	require.Equal(t, Part{Number: maxTables + 4, First: 2048 + 2*maxTables - 1, Blocks: 1, ID: got.Parts[maxTables].ID}, got.Parts[maxTables], "the last")
	tables(maxTables + 1)
	got, err = Read(d)
	require.NoError(t, err)
	require.Len(t, got.Parts, maxTables+1)
	_, err = got.Find(2 * maxTables)
	require.ErrorContains(t, err, "the extended partition 1: it has more than 256 tables")
}

// FuzzDOS: no chain makes Read panic or go on for ever; partitions lie in the disk, each for itself.
func FuzzDOS(f *testing.F) {
	f.Add([]byte{1, 5, 0, 2, 60, 0, 0x83, 1, 3, 0, 5, 8, 9})
	f.Add([]byte{0, 0x0f, 1, 60, 1, 1, 5, 10, 10, 1, 0, 0x83, 1, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		const blocks = 64
		disk := make([]byte, blocks*512)
		for i := range int64(blocks) {
			disk[i*512+510], disk[i*512+511] = 0x55, 0xaa
		}
		for at := 0; len(b) >= 4; b = b[4:] { // step to a table and a slot in it, type, first, length
			at = (at + int(b[0]>>2)) % blocks
			e := disk[at*512+446+16*int(b[0]&3):]
			e[4], e[8], e[12] = b[1], b[2], b[3]
		}
		d := blockdev.NewMem(blocks*512, 512)
		defer d.Close()
		_, err := d.File().WriteAt(disk, 0)
		require.NoError(t, err)
		got, err := Read(d)
		if err != nil {
			return
		}
		owner := map[blockdev.LBA]int{0: -1}
		for _, p := range got.Parts {
			for at := p.First; at < p.First+blockdev.LBA(p.Blocks); at++ {
				require.Zero(t, owner[at], fmt.Sprint(p))
				owner[at] = p.Number
			}
			require.LessOrEqual(t, uint64(p.First)+uint64(p.Blocks), uint64(blocks), fmt.Sprint(p))
		}
	})
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
