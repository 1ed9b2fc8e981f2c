package ext4_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestLogSizes cuts the power of volumes whose journals are as small and as large as they come. Of each the log has just
// gone around its end; the kernel, e2fsck and we make the same of it.
func TestLogSizes(t *testing.T) {
	for _, tc := range []struct {
		name, size string
		blocks     uint32
		args       []string
	}{
		{"1,024 blocks", "16M", 1024, []string{"-b", "1024", "-J", "size=1"}},
		{"1,024 blocks, no checksums", "16M", 1024, []string{"-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"}},
		{"400 MiB", "1G", 102400, []string{"-b", "4096", "-J", "size=400"}},
		{"1 GiB", "3G", 262144, []string{"-b", "4096", "-J", "size=1024"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := disktest.Make(t, tc.size, append(tc.args, "-E", "lazy_itable_init=1,lazy_journal_init=1")...)
			last := tc.blocks - 40
			setLogHead(t, img, tc.blocks, last)
			v, done := open(t, img, ext4.Options{CommitInterval: time.Hour})
			root, err := v.Root()
			require.NoError(t, err)
			for k := range 40 {
				f, err := root.Create(fmt.Sprintf("file %d", k), unix.S_IFREG|0o600, 0, 0, 0, 0)
				require.NoError(t, err)
				_, err = f.Write(0, bytes.Repeat([]byte{byte(k)}, 5000))
				require.NoError(t, err)
				require.NoError(t, f.Fsync(false))
				f.Put()
				if k%5 == 4 {
					require.NoError(t, root.Unlink(fmt.Sprintf("file %d", k-2)))
				}
			}
			root.Put()
			require.NoError(t, v.Sync())
			want := ourManifest(t, v)
			cut := filepath.Join(t.TempDir(), "cut.img")
			copySparse(t, img, cut)
			done()
			disktest.Fsck(t, img)

			start, end := logBounds(t, cut)
			require.GreaterOrEqual(t, start, last, "where the log starts")
			require.Less(t, end, start, "the log has not gone around")

			fsck := filepath.Join(t.TempDir(), "fsck.img")
			copySparse(t, cut, fsck)
			out, err := exec.Command("e2fsck", "-fy", "-E", "journal_only", fsck).CombinedOutput()
			require.NoError(t, err, "%s", out)
			disktest.Fsck(t, fsck)
			ro, end1 := open(t, fsck, ext4.Options{ReadOnly: true})
			requireSame(t, want, ourManifest(t, ro))
			end1()

			kernel := filepath.Join(t.TempDir(), "kernel.img")
			copySparse(t, cut, kernel)
			disktest.Mount(t, kernel, "", func(dir string) { requireSame(t, want, kernelManifest(t, dir)) })
			disktest.Fsck(t, kernel)

			v, done = open(t, cut, ext4.Options{})
			requireSame(t, want, ourManifest(t, v))
			done()
			disktest.Fsck(t, cut)
		})
	}
}

// setLogHead makes a new, empty journal go on at a block of its choice (s_head), as if it had been used up to there.
func setLogHead(t *testing.T, img string, blocks, head uint32) {
	t.Helper()
	m := disktest.Open(t, img)
	out := disktest.Debugfs(t, img, "bmap <8> 0")
	f := strings.Fields(out)
	require.NotEmpty(t, f, out)
	n, err := strconv.ParseUint(f[len(f)-1], 10, 64)
	require.NoError(t, err, out)
	b := m.Block(n)
	be := binary.BigEndian
	require.EqualValues(t, 0xC03B3998, be.Uint32(b), "journal superblock")
	require.Equal(t, blocks, be.Uint32(b[0x10:]), "s_maxlen")
	require.Zero(t, be.Uint32(b[0x1c:]), "s_start")
	be.PutUint32(b[0x58:], head)
	m.SetBlock(n, b)
}

var commitAt = regexp.MustCompile(`type 2 \(commit block\) at block (\d+)`)

// logBounds asks e2fsprogs where the log of a volume starts, and where its last commit is.
func logBounds(t *testing.T, img string) (start, end uint32) {
	t.Helper()
	out, err := exec.Command("dumpe2fs", "-h", img).Output()
	require.NoError(t, err)
	m := regexp.MustCompile(`Journal start: +(\d+)`).FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	n, err := strconv.ParseUint(string(m[1]), 10, 32)
	require.NoError(t, err)
	dump := disktest.Debugfs(t, img, "logdump")
	c := commitAt.FindAllStringSubmatch(dump, -1)
	require.NotEmpty(t, c, dump)
	at, err := strconv.ParseUint(c[len(c)-1][1], 10, 32)
	require.NoError(t, err)
	return uint32(n), uint32(at)
}
