package disk

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestForeign asks the tools that make the formats. Those that are not here are made by their signatures alone.
func TestForeign(t *testing.T) {
	for _, c := range []struct {
		want string
		make []string
	}{
		{"an XFS volume", []string{"mkfs.xfs", "-q", "-f"}},
		{"a btrfs volume", []string{"mkfs.btrfs", "-q", "-f"}},
		{"swap space", []string{"mkswap", "-q"}},
		{"a squashfs image", []string{"mksquashfs", "/etc/hostname"}},
		{"a partition table (GPT)", []string{"sfdisk", "-q", "-X", "gpt"}},
		{"a partition table (MBR)", []string{"sfdisk", "-q", "-X", "dos"}},
		{"a FAT volume", []string{"mkfs.vfat"}},
		{"blank", []string{"true"}},
	} {
		t.Run(c.want, func(t *testing.T) {
			tool, err := exec.LookPath(c.make[0])
			if err != nil {
				t.Skipf("needs %s", c.make[0])
			}
			image := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(image, nil, 0o600))
			require.NoError(t, os.Truncate(image, 512<<20)) // sparse; XFS takes no less
			if c.make[0] == "mksquashfs" {                  // it would add to what is there
				require.NoError(t, os.Remove(image))
			}
			cmd := exec.Command(tool, append(c.make[1:], image)...)
			if c.make[0] == "sfdisk" {
				cmd.Stdin = strings.NewReader(",\n") // one partition
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			f, err := os.Open(image)
			require.NoError(t, err)
			defer f.Close()
			b := make([]byte, ForeignSize)
			if _, err = f.ReadAt(b, 0); err != io.EOF { // the squashfs image is smaller
				require.NoError(t, err)
			}
			what, remedy, ok := Foreign(b)
			require.True(t, ok)
			require.Contains(t, what, c.want)
			require.NotEmpty(t, remedy)
		})
	}
	for _, s := range signatures {
		b := make([]byte, ForeignSize)
		copy(b[s.off:], s.magic)
		what, _, ok := Foreign(b)
		require.True(t, ok)
		require.Equal(t, s.what, what)
		_, _, ok = Foreign(b[:s.off+len(s.magic)-1])
		require.False(t, ok && what == "" && s.off == 0)
	}
	_, _, ok := Foreign([]byte("something else"))
	require.False(t, ok)
	_, _, ok = Foreign(nil)
	require.True(t, ok, "no bytes that are not zeros")
}
