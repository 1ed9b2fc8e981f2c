package jbd2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
)

// The oracles: the kernel's ext4 on a loop device, e2fsck and debugfs. A volume is an image file that mke2fs made; the
// journal's blocks are asked of debugfs, so no code of ours reads ext4's structures here.

// oracle makes a directory for images, or skips the test naming what it lacks.
func oracle(t *testing.T, needMount bool) string {
	t.Helper()
	for _, tool := range []string{"mke2fs", "e2fsck", "debugfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIP: %s is missing: install e2fsprogs", tool)
		}
	}
	if needMount {
		if os.Getuid() != 0 {
			t.Skip("SKIP: mounting a loop device needs root")
		}
		if _, err := os.Stat("/dev/loop-control"); err != nil {
			t.Skip("SKIP: /dev/loop-control is missing")
		}
	}
	return t.TempDir()
}

func commandStatus(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return string(out), err
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}

func mkfs(t *testing.T, img string, mib int, args ...string) {
	t.Helper()
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, int64(mib)<<20))
	command(t, "mke2fs", append(append([]string{"-q", "-F", "-t", "ext4"}, args...), img)...)
}

// loopMount mounts img with the kernel's ext4 until the returned function or the end of the test.
func loopMount(t *testing.T, img, options string) (dir string, umount func()) {
	t.Helper()
	dir = t.TempDir()
	out, err := exec.Command("mount", "-o", "loop,"+options, img, dir).CombinedOutput()
	if err != nil && strings.Contains(string(out), "failed to setup loop device") {
		t.Skipf("SKIP: no loop device: %s", out)
	}
	require.NoError(t, err, "mount -o %s: %s", options, out)
	done := false
	umount = func() {
		if !done {
			done = true
			require.NoError(t, loopmount.Unmount(dir))
		}
	}
	t.Cleanup(umount)
	return dir, umount
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, sparse.Copy(from, to))
}

// mapsBlocks says whether a file has blocks, by what debugfs says of it.
func mapsBlocks(stat string) bool {
	_, list, ok := strings.Cut(stat, "EXTENTS:")
	if !ok {
		_, list, _ = strings.Cut(stat, "BLOCKS:")
	}
	return extentLine.MatchString(list)
}

var extentLine = regexp.MustCompile(`\((\d+)(?:-(\d+))?\):(\d+)(?:-(\d+))?`)

// journalMap asks debugfs where the journal lies. It does not read bitmaps (-c): before recovery they may be older or newer than their checksums, since each sync(2) on the machine
// writes home what no transaction changes at the time.
func journalMap(t *testing.T, img string) (uint32, MapFunc) {
	t.Helper()
	out := command(t, "debugfs", "-c", "-R", "stat <8>", img)
	_, list, ok := strings.Cut(out, "EXTENTS:")
	if !ok {
		_, list, ok = strings.Cut(out, "BLOCKS:")
	}
	require.True(t, ok, out)
	blocks := map[uint32]Block{}
	for _, m := range extentLine.FindAllStringSubmatch(list, -1) {
		n := func(i int) uint64 {
			v, _ := strconv.ParseUint(m[i], 10, 64)
			return v
		}
		last := n(2)
		if m[2] == "" {
			last = n(1)
		}
		for i := n(1); i <= last; i++ {
			blocks[uint32(i)] = Block(n(3) + i - n(1))
		}
	}
	require.NotEmpty(t, blocks)
	return uint32(len(blocks)), func(n uint32) (Block, uint32, error) {
		b, ok := blocks[n]
		if !ok {
			return 0, 0, fmt.Errorf("no block %d", n)
		}
		return b, 1, nil
	}
}

// ext4Super is where the ext4 superblock lies in an image; its checksum is in its last 4 bytes.
const ext4Super = 1024

func blockSizeOf(img []byte) int {
	return 1024 << binary.LittleEndian.Uint32(img[ext4Super+24:])
}

// setRecover sets or clears ext4's needs_recovery flag, which belongs to the file system above.
func setRecover(img []byte, on bool) {
	le := binary.LittleEndian
	sb := img[ext4Super:][:1024]
	f := le.Uint32(sb[96:]) &^ 4
	if on {
		f |= 4
	}
	le.PutUint32(sb[96:], f)
	if le.Uint32(sb[100:])&0x400 != 0 { // metadata_csum
		le.PutUint32(sb[1020:], crc32c(^uint32(0), sb[:1020]))
	}
}

// freeBlocks are n blocks that the volume does not use.
func freeBlocks(t *testing.T, img string, n int) []Block {
	t.Helper()
	out := command(t, "debugfs", "-R", fmt.Sprintf("ffb %d", n), img)
	_, list, _ := strings.Cut(out, "found:")
	var b []Block
	for _, f := range strings.Fields(list) {
		v, err := strconv.ParseUint(f, 10, 64)
		require.NoError(t, err)
		b = append(b, Block(v))
	}
	require.Len(t, b, n)
	return b
}

// sameVolume compares two images, but for what recovery itself notes: the journal's and ext4's superblocks.
func sameVolume(t *testing.T, want, got []byte, journalSuper Block, who string) {
	t.Helper()
	require.Len(t, got, len(want))
	bs := blockSizeOf(want)
	for b := range len(want) / bs {
		p, q := want[b*bs:(b+1)*bs], got[b*bs:(b+1)*bs]
		if bytes.Equal(p, q) || Block(b) == journalSuper {
			continue
		}
		if b == ext4Super/bs {
			p, q = bytes.Clone(p), bytes.Clone(q)
			clear(p[ext4Super%bs:][:1024])
			clear(q[ext4Super%bs:][:1024])
			if bytes.Equal(p, q) {
				continue
			}
		}
		require.Fail(t, "images differ", "block %d is not what %s makes of it", b, who)
	}
}
