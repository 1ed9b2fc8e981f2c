package jbd2

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestE2fsprogsImages recovers the journals of the images of e2fsprogs' own tests (tests/*/image.gz, unpacked as TEST.img) and
// compares with debugfs's replay; e2fsck's also frees orphans, and makes group descriptors' checksums right. Images that
// debugfs does not open, and those without a journal, are left out. Set E2FSPROGS_IMAGES to a directory of *.img files.
func TestE2fsprogsImages(t *testing.T) {
	images, _ := filepath.Glob(filepath.Join(os.Getenv("E2FSPROGS_IMAGES"), "*.img"))
	if os.Getenv("E2FSPROGS_IMAGES") == "" || len(images) == 0 {
		t.Skip("SKIP: E2FSPROGS_IMAGES names no directory of images from e2fsprogs' tests")
	}
	for _, image := range images {
		t.Run(filepath.Base(image), func(t *testing.T) {
			dir := oracle(t, false)
			if strings.HasPrefix(filepath.Base(image), "j_ext_") {
				t.Skip("SKIP: the image of an external journal")
			}
			if out, err := commandStatus("debugfs", "-R", "stat <8>", image); err != nil || !mapsBlocks(out) {
				t.Skip("SKIP: debugfs finds no journal in it")
			}
			length, f := journalMap(t, image)
			super, _, _ := f(0)
			d, err := loadTestDevice(image)
			require.NoError(t, err)
			c, err := NewCache(d, blockSizeOf(d.image), CacheOptions{})
			require.NoError(t, err)
			l, err := OpenLog(c, length, f)
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			r, err := l.Scan()
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			require.NoError(t, r.Replay(nil))
			n := 0
			require.NoError(t, r.FastCommits(func(FCRecord) error { n++; return nil }))
			t.Logf("%d transactions, %d blocks, %d fast-commit records", r.Transactions, r.Blocks(), n)
			run := filepath.Join(dir, "run.img")
			copyFile(t, image, run)
			command(t, "debugfs", "-w", "-R", "journal_run", run)
			theirs, err := os.ReadFile(run)
			require.NoError(t, err)
			if n == 0 {
				sameVolume(t, theirs, d.durable, super, "debugfs")
			}
		})
	}
}

// TestRecoverDebugfs recovers logs that debugfs wrote: another writer, which also makes version 2 checksums, and can
// leave a transaction without its commit.
func TestRecoverDebugfs(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		open string
		want Features
	}{
		{"plain", []string{"-b", "1024", "-O", "^64bit,^metadata_csum"}, "jo", 0},
		{"64bit", []string{"-b", "4096", "-O", "64bit,^metadata_csum"}, "jo", Feature64Bit},
		{"v2", []string{"-b", "1024", "-O", "^64bit,metadata_csum"}, "jo -c -v 2", FeatureChecksumV2},
		{"v2 64bit", []string{"-b", "4096", "-O", "64bit,metadata_csum"}, "jo -c -v 2", FeatureChecksumV2 | Feature64Bit},
		{"v3", []string{"-b", "1024", "-O", "^64bit,metadata_csum"}, "jo -c -v 3", FeatureChecksumV3},
		{"v3 64bit", []string{"-b", "4096", "-O", "64bit,metadata_csum"}, "jo -c -v 3", FeatureChecksumV3 | Feature64Bit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := oracle(t, false)
			img := filepath.Join(dir, "made.img")
			mkfs(t, img, 24, tc.args...)
			free := freeBlocks(t, img, 60)
			data := filepath.Join(dir, "data")
			p := make([]byte, 60*4096)
			for i := 0; i < len(p); i += 1024 {
				fillBlock(p[i:i+1024], uint64(i+7)) // some look like the journal's own blocks
			}
			require.NoError(t, os.WriteFile(data, p, 0o600))
			list := func(b []Block) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(b), " ", ","), "[]") }
			script := filepath.Join(dir, "script")
			require.NoError(t, os.WriteFile(script, []byte(strings.Join([]string{
				tc.open,
				"jw -b " + list(free[:50]) + " " + data,
				"jw -r " + list(free[10:20]),
				"jw -b " + list(free[15:17]) + " " + data,
				"jc", tc.open,
				"jw -b " + list(free[40:60]) + " " + data + " -c",
				"jc",
			}, "\n")+"\n"), 0o600))
			command(t, "debugfs", "-w", "-f", script, img)

			length, f := journalMap(t, img)
			super, _, _ := f(0)
			d, err := loadTestDevice(img)
			require.NoError(t, err)
			c, err := NewCache(d, blockSizeOf(d.image), CacheOptions{})
			require.NoError(t, err)
			l, err := OpenLog(c, length, f)
			require.NoError(t, err)
			require.Equal(t, tc.want, l.Info().Features&^FeatureRevoke)
			r, err := l.Scan()
			require.NoError(t, err)
			require.NotZero(t, r.RevokeBlocks)
			require.Equal(t, 50-10+2, r.Blocks(), "revoked ones are out, journalled again they are in, uncommitted ones never were")
			require.NoError(t, r.Replay(nil))
			command(t, "e2fsck", "-y", "-E", "journal_only", img)
			theirs, err := os.ReadFile(img)
			require.NoError(t, err)
			sameVolume(t, theirs, d.durable, super, "e2fsck")
		})
	}
}
