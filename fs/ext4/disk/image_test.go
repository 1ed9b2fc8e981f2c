package disk_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// volumes are the kinds of image that every test on real images goes through.
var volumes = map[string][]string{
	"default":    {"-O", "metadata_csum_seed,orphan_file"},
	"debian":     {},
	"1k":         {"-b", "1024", "-O", "metadata_csum_seed"},
	"2k":         {"-b", "2048"},
	"64k":        {"-b", "65536"},
	"32bit":      {"-O", "^64bit"},
	"nocsum":     {"-O", "^metadata_csum"},
	"uninit_bg":  {"-O", "^metadata_csum,uninit_bg", "-b", "1024"},
	"uninit64":   {"-O", "^metadata_csum,uninit_bg,64bit", "-b", "1024"},
	"noflex":     {"-O", "^flex_bg", "-b", "1024"},
	"meta_bg":    {"-O", "meta_bg,^resize_inode", "-b", "1024"},
	"sparse2":    {"-O", "sparse_super2", "-b", "1024"},
	"nosparse":   {"-O", "^sparse_super,^resize_inode", "-b", "1024"},
	"ino128":     {"-I", "128"},
	"ino512":     {"-I", "512", "-b", "1024"},
	"bigalloc":   {"-O", "bigalloc", "-C", "16384"},
	"ext2":       {"-O", "^has_journal,^extent,^64bit,^metadata_csum,^flex_bg,^huge_file,^dir_nlink,^extra_isize"},
	"fewperg":    {"-b", "1024", "-g", "1024", "-O", "^resize_inode"},
	"everything": {"-O", "metadata_csum_seed,orphan_file,large_dir,inline_data,ea_inode,project,quota,casefold,verity", "-I", "512"},
}

// TestImages decodes every structure that mkfs.ext4 writes, checks all checksums, and encodes it to the same bytes.
func TestImages(t *testing.T) {
	for name, args := range volumes {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "48M", args...)
			m := disktest.Open(t, img)

			f, err := os.ReadFile(img)
			require.NoError(t, err)
			sb := make([]byte, disk.SuperblockSize)
			m.Encode(sb)
			require.Equal(t, f[disk.SuperblockOffset:disk.SuperblockOffset+disk.SuperblockSize], sb)

			for g := range m.Groups() {
				d := m.Group(g)
				i, off := m.DescLocation(g)
				want := m.Block(m.DescBlock(i))[off : off+m.DescSize()]
				got := make([]byte, m.DescSize())
				sum := d.Checksum
				d.Checksum = 0
				m.EncodeGroup(g, &d, got)
				require.Equal(t, want, got)
				require.Equal(t, sum, d.Checksum)
				if d.Flags&disk.BGBlockUninit == 0 {
					require.Equal(t, m.BlockBitmapCsum(m.Block(d.BlockBitmap)), d.BlockBitmapCsum, "group %d", g)
				}
				if d.Flags&disk.BGInodeUninit == 0 {
					require.Equal(t, m.InodeBitmapCsum(m.Block(d.InodeBitmap)), d.InodeBitmapCsum, "group %d", g)
				}
			}
			for _, g := range m.BackupGroups() {
				b := m.Block(m.GroupFirstBlock(g))
				s, err := disk.DecodeSuperblock(b)
				require.NoError(t, err, "group %d", g)
				require.Equal(t, g, uint32(s.BlockGroupNr))
				require.NoError(t, s.VerifyChecksum())
			}
			for ino := uint32(1); ino <= m.FirstIno; ino++ {
				n, slot := m.Inode(ino)
				if n.Mode == 0 && n.Checksum == 0 {
					continue
				}
				got := append([]byte(nil), slot...)
				got[0x7C], got[0x7D] = 0, 0
				m.EncodeInode(ino, &n, got)
				require.Equal(t, slot, got, "inode %d", ino)
			}
			if m.OrphanFileInum != 0 {
				n, _ := m.Inode(m.OrphanFileInum)
				for _, b := range m.Map(m.OrphanFileInum, &n) {
					seed := disk.InodeSeed(m.CsumSeed(), m.OrphanFileInum, n.Generation)
					block := m.Block(b)
					require.NoError(t, m.VerifyOrphanBlock(seed, b, block))
					require.Zero(t, disk.GetOrphan(block, m.OrphansPerBlock()-1))
				}
			}
		})
	}
}

// TestDumpe2fs compares what we read with what dumpe2fs prints.
func TestDumpe2fs(t *testing.T) {
	disktest.Tool(t, "dumpe2fs")
	group := regexp.MustCompile(`(?m)^Group (\d+): \(Blocks (\d+)-(\d+)\)`)
	desc := regexp.MustCompile(`Group descriptors? at (\d+)(?:-(\d+))?`)
	for name, args := range volumes {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "48M", args...)
			m := disktest.Open(t, img)
			out, err := exec.Command("dumpe2fs", img).Output()
			require.NoError(t, err)
			head := map[string]string{}
			for _, l := range strings.Split(string(out), "\n") {
				if k, v, ok := strings.Cut(l, ":"); ok && head[k] == "" {
					head[k] = strings.TrimSpace(v)
				}
			}
			num := func(key string, v any) {
				if head[key] != "" {
					require.Equal(t, head[key], fmt.Sprint(v), key)
				}
			}
			num("Inode count", m.InodesCount)
			num("Block count", m.BlocksCount)
			num("Reserved block count", m.RBlocksCount)
			num("Free blocks", m.FreeBlocksCount)
			num("Free inodes", m.FreeInodesCount)
			num("First block", m.FirstDataBlock)
			num("Block size", m.BlockSize())
			num("Group descriptor size", m.DescSize())
			num("Reserved GDT blocks", m.ReservedGDTBlocks)
			num("Blocks per group", m.BlocksPerGroup)
			num("Inodes per group", m.InodesPerGroup)
			num("Inode blocks per group", m.InodeTableBlocks())
			num("Flex block group size", m.FlexSize())
			num("First inode", m.FirstIno)
			num("Inode size", m.InodeSize)
			num("Required extra isize", m.MinExtraIsize)
			num("Desired extra isize", m.WantExtraIsize)
			num("Journal inode", m.JournalInum)
			num("Orphan file inode", m.OrphanFileInum)
			num("Overhead clusters", m.OverheadBlocks)
			if m.FeatureROCompat.Has(disk.ROCompatMetadataCsum) {
				num("Checksum", fmt.Sprintf("%#08x", m.Checksum))
			}
			var feats []string
			for _, s := range []string{m.FeatureCompat.String(), m.FeatureIncompat.String(), m.FeatureROCompat.String()} {
				if s != "" {
					feats = append(feats, strings.Split(s, ", ")...)
				}
			}
			require.Equal(t, strings.Fields(head["Filesystem features"]), feats)

			found := group.FindAllStringSubmatchIndex(string(out), -1)
			require.Len(t, found, int(m.Groups()))
			for i, ix := range found {
				end := len(out)
				if i+1 < len(found) {
					end = found[i+1][0]
				}
				part := string(out[ix[0]:end])
				g := group.FindStringSubmatch(part)
				first, _ := strconv.ParseUint(g[2], 10, 64)
				last, _ := strconv.ParseUint(g[3], 10, 64)
				require.Equal(t, first, m.GroupFirstBlock(uint32(i)))
				require.Equal(t, uint32(last-first+1), m.BlocksInGroup(uint32(i)))
				require.Equal(t, strings.Contains(part, "superblock at"), m.HasSuper(uint32(i)), part)
				var n uint32
				if d := desc.FindStringSubmatch(part); d != nil {
					a, _ := strconv.ParseUint(d[1], 10, 64)
					b, err := strconv.ParseUint(d[2], 10, 64)
					if err != nil {
						b = a
					}
					n = uint32(b - a + 1)
				}
				require.Equal(t, n, m.DescBlocksIn(uint32(i)), part)
			}
		})
	}
}

// TestKernelInodes reads what the kernel wrote: times, owners, devices, symlinks, extents.
func TestKernelInodes(t *testing.T) {
	for _, name := range []string{"default", "1k", "ino128", "ext2", "nocsum"} {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "48M", volumes[name]...)
			stats := map[string]os.FileInfo{}
			disktest.Mount(t, img, "", func(dir string) {
				sh(t, dir, `mknod c c 5 1; mknod b b 300 70000; ln -s short fast; ln -s $(printf 'x%.0s' $(seq 200)) slow
touch -d '1905-03-04 05:06:07.25' old; touch -d '2300-01-02 03:04:05.123456789' new; echo hi > f; chown 70000:80000 f; chmod 4751 f`)
				holes, err := os.Create(filepath.Join(dir, "holes"))
				require.NoError(t, err)
				defer holes.Close()
				for k := range int64(401) {
					_, err = holes.WriteAt(make([]byte, 4096), 2*k*4096)
					require.NoError(t, err)
				}
				require.NoError(t, unix.Syncfs(int(holes.Fd())))
				for _, n := range []string{"c", "b", "fast", "slow", "old", "new", "f", "holes"} {
					st, err := os.Lstat(filepath.Join(dir, n))
					require.NoError(t, err)
					stats[n] = st
				}
			})
			m := disktest.Open(t, img)
			for n, st := range stats {
				u := sysStat(st)
				in, slot := m.Inode(uint32(u.Ino))
				require.Equal(t, u.Mode, uint32(in.Mode), n)
				require.Equal(t, uint64(u.Nlink), uint64(in.LinksCount), n)
				require.Equal(t, []uint32{u.Uid, u.Gid}, []uint32{in.UID, in.GID}, n)
				require.Equal(t, uint64(u.Size), in.Size, n)
				require.Equal(t, uint64(u.Blocks), m.Sectors(&in), n)
				require.Equal(t, disk.Timestamp{Sec: u.Mtim.Sec, Nsec: uint32(u.Mtim.Nsec)}, in.Mtime, n)
				require.Equal(t, disk.Timestamp{Sec: u.Ctim.Sec, Nsec: uint32(u.Ctim.Nsec)}, in.Ctime, n)
				if in.IsDevice() {
					maj, min := in.Device()
					require.Equal(t, u.Rdev, mkdev(maj, min), n)
					c := in
					require.True(t, c.SetDevice(maj, min))
					require.Equal(t, in.Block, c.Block)
				}
				got := append([]byte(nil), slot...)
				m.EncodeInode(uint32(u.Ino), &in, got)
				require.Equal(t, slot, got, n)
				switch n {
				case "fast":
					require.Equal(t, "short", string(in.Block[:in.Size]))
				case "slow":
					require.Equal(t, strings.Repeat("x", 200), string(m.Content(uint32(u.Ino))))
				case "holes":
					zero := 0
					for _, b := range m.Map(uint32(u.Ino), &in) {
						if b == 0 {
							zero++
						}
					}
					require.Equal(t, 400*4096/m.BlockSize(), zero)
				}
			}
			disktest.Fsck(t, img)
		})
	}
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	c := exec.Command("sh", "-ec", script)
	c.Dir = dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
