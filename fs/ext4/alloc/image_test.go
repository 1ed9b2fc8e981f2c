package alloc

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	_ "github.com/lanefs/lanefs/fs/ext4/disk/disktest" // for its LC_ALL
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/stretchr/testify/require"
)

// images are the kinds of volume that the tests run on.
var images = []struct {
	name string
	args []string
	size string
}{
	{"1k", []string{"-b", "1024"}, "40M"},
	{"2k", []string{"-b", "2048"}, "70M"},
	{"4k", []string{"-b", "4096", "-O", "metadata_csum_seed"}, "300M"},
	{"1k small groups", []string{"-b", "1024", "-g", "1024", "-N", "2000", "-G", "4"}, "20M"},
	{"no flex_bg", []string{"-b", "1024", "-O", "^flex_bg"}, "40M"},
	{"no 64bit", []string{"-b", "1024", "-O", "^64bit"}, "40M"},
	{"uninit_bg", []string{"-b", "1024", "-O", "^metadata_csum,^64bit,uninit_bg"}, "40M"},
	{"no checksums", []string{"-b", "1024", "-O", "^metadata_csum,^uninit_bg"}, "40M"},
	{"meta_bg", []string{"-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"}, "80M"},
	{"sparse_super2", []string{"-b", "1024", "-O", "sparse_super2,^resize_inode"}, "40M"},
	{"ext2", []string{"-t", "ext2", "-b", "1024"}, "20M"},
	{"small inodes", []string{"-b", "4096", "-I", "128"}, "150M"},
}

func tool(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed: install e2fsprogs to run this test", name)
	}
}

// mkfs makes an image. What mke2fs does not write, unused inode tables for one, is random bytes.
func mkfs(t testing.TB, size string, args ...string) string {
	t.Helper()
	tool(t, "mkfs.ext4")
	path := filepath.Join(t.TempDir(), "image")
	fillRandom(t, path, size)
	args = append([]string{"-q", "-F", "-E", "lazy_itable_init=1,nodiscard"}, args...)
	out, err := exec.Command("mkfs.ext4", append(args, path, size)...).CombinedOutput()
	require.NoError(t, err, "mkfs.ext4: %s", out)
	return path
}

func fillRandom(t testing.TB, path, size string) {
	var mb int
	_, err := fmt.Sscanf(size, "%dM", &mb)
	require.NoError(t, err)
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	b := bytes.Repeat([]byte{0xa5, 0x5a, 0x01, 0x81}, 1<<18)
	for range min(mb, 80) {
		_, err = f.Write(b)
		require.NoError(t, err)
	}
	require.NoError(t, f.Truncate(int64(mb)<<20))
}

// volume is an image with an Allocator on it.
type volume struct {
	t     testing.TB
	path  string
	dev   *blockdev.TestDevice
	cache *jbd2.Cache
	jnl   *jbd2.Journal
	sb    *disk.Superblock
	a     *Allocator
}

func open(t testing.TB, path string) *volume {
	t.Helper()
	v := &volume{t: t, path: path}
	var err error
	v.dev, err = blockdev.OpenFile(path, 512)
	require.NoError(t, err)
	head := make([]byte, disk.SuperblockSize)
	_, err = v.dev.File().ReadAt(head, disk.SuperblockOffset)
	require.NoError(t, err)
	v.sb, err = disk.DecodeSuperblock(head)
	require.NoError(t, err)
	v.cache, err = jbd2.NewCache(v.dev, v.sb.BlockSize(), jbd2.CacheOptions{Limit: 1 << 20, Blocks: v.sb.BlocksCount})
	require.NoError(t, err)
	v.jnl, err = jbd2.OpenInPlace(v.cache, jbd2.Config{Interval: time.Hour})
	require.NoError(t, err)
	v.a, err = New(v.sb, v.cache)
	require.NoError(t, err)
	require.Equal(t, v.sb.FreeBlocksCount, v.a.FreeBlocks())
	require.EqualValues(t, v.sb.FreeInodesCount, v.a.FreeInodes())
	return v
}

// close writes the superblock and lets go of everything.
func (v *volume) close() {
	v.t.Helper()
	v.a.Close()
	require.NoError(v.t, v.jnl.Close())
	require.NoError(v.t, v.cache.Close(), "buffers leaked")
	require.Zero(v.t, v.dev.Outstanding())
	v.sb.FreeBlocksCount, v.sb.FreeInodesCount = v.a.FreeBlocks(), uint32(v.a.FreeInodes())
	b := make([]byte, disk.SuperblockSize)
	v.sb.Encode(b)
	_, err := v.dev.File().WriteAt(b, disk.SuperblockOffset)
	require.NoError(v.t, err)
	require.NoError(v.t, v.dev.Close())
}

// do runs f under a handle.
func (v *volume) do(credits int, f func(h *jbd2.Handle)) {
	v.t.Helper()
	h, err := v.jnl.Begin(credits)
	require.NoError(v.t, err)
	f(h)
	require.NoError(v.t, h.End())
}

func (v *volume) alloc(goal disk.Block, want, least uint32) (b disk.Block, n uint32, err error) {
	v.t.Helper()
	v.do(AllocCredits, func(h *jbd2.Handle) { b, n, err = v.a.Alloc(h, goal, want, least, UseNodes) })
	return b, n, err
}

func (v *volume) free(b disk.Block, n uint32) {
	v.t.Helper()
	v.do(20*FreeCredits, func(h *jbd2.Handle) { require.NoError(v.t, v.a.Free(h, b, n)) })
}

// fsck runs e2fsck -fn and returns what it says of the bitmaps: blocks and inodes in use without an owner. Any other
// complaint fails the test, but for the counts that follow from them.
func fsck(t testing.TB, path string) (blocks map[uint64]bool, inodes map[uint64]bool) {
	t.Helper()
	tool(t, "e2fsck")
	out, err := exec.Command("e2fsck", "-fn", path).CombinedOutput()
	blocks, inodes = map[uint64]bool{}, map[uint64]bool{}
	if err == nil {
		return blocks, inodes
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, "Block bitmap differences:"); ok {
			differences(t, s, blocks)
			continue
		}
		if s, ok := strings.CutPrefix(line, "Inode bitmap differences:"); ok {
			differences(t, s, inodes)
			continue
		}
		switch {
		case line == "", line == "Fix? no", strings.HasPrefix(line, "e2fsck "), strings.HasPrefix(line, "Pass "):
		case strings.HasPrefix(line, "Free blocks count wrong"), strings.HasPrefix(line, "Free inodes count wrong"),
			strings.HasPrefix(line, "Directories count wrong"):
		case strings.HasSuffix(line, "WARNING: Filesystem still has errors **********"):
		case strings.Contains(line, " blocks") && strings.Contains(line, " files "):
		default:
			t.Fatalf("e2fsck: %s\n%s", line, out)
		}
	}
	require.True(t, len(blocks)+len(inodes) > 0, "e2fsck: %s", out)
	return blocks, inodes
}

var difference = regexp.MustCompile(`^([-+])(?:\((\d+)--(\d+)\)|(\d+))$`)

func differences(t testing.TB, s string, into map[uint64]bool) {
	for _, f := range strings.Fields(s) {
		m := difference.FindStringSubmatch(f)
		require.NotNil(t, m, "e2fsck: %q", f)
		require.Equal(t, "-", m[1], "in use, but free in the bitmap: %s", f)
		from, _ := strconv.ParseUint(m[2]+m[4], 10, 64)
		to := from
		if m[3] != "" {
			to, _ = strconv.ParseUint(m[3], 10, 64)
		}
		for ; from <= to; from++ {
			into[from] = true
		}
	}
}

// groupCounts is what dumpe2fs says is free in each group.
func groupCounts(t testing.TB, path string) []string {
	t.Helper()
	tool(t, "dumpe2fs")
	out, err := exec.Command("dumpe2fs", path).Output()
	require.NoError(t, err)
	var counts []string
	for line := range strings.Lines(string(out)) {
		if end := strings.Index(line, "directories"); end > 0 && strings.Contains(line, " free blocks,") {
			counts = append(counts, strings.TrimSpace(line[:end])) // the unused inodes after it may become fewer
		}
	}
	return counts
}

func TestMain(m *testing.M) {
	for _, d := range []string{"/sbin", "/usr/sbin"} {
		if !strings.Contains(os.Getenv("PATH"), d) {
			os.Setenv("PATH", os.Getenv("PATH")+":"+d)
		}
	}
	os.Exit(m.Run())
}
