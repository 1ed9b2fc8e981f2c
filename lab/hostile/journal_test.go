package hostile

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestJournals mounts every sample for writing, changes nothing, and unmounts it. Afterwards the volume has what was in the
// log, as after e2fsck's replay; a volume with an empty log has not changed, except for its superblock.
func TestJournals(t *testing.T) {
	disktest.Tool(t, "e2fsck", "debugfs")
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			image := s.image(t)
			m := newMedium(image, false)
			var l mountLog
			var err error
			bounded(t, func() {
				var v *ext4.FS
				if v, err = ext4.Open(m, ext4.Options{Log: l.logger()}); err == nil {
					err = v.Close()
				}
			})
			checkMedium(t, m)
			log := strings.Join(l.lines, "\n")
			switch {
			case err != nil:
				refusedJournal(t, image, err)
			case strings.Contains(log, "deletions") || strings.Contains(log, "fast commit"):
				sameTrees(t, image, m.snapshot())
			case strings.Contains(log, "the journal was recovered"):
				file := saveImage(t, image)
				fsck(t, file, "-y", "-E", "journal_only")
				sameBytes(t, load(t, file), m.snapshot())
			default:
				sameBytes(t, image, m.snapshot())
			}
		})
	}
}

// objects matches what e2fsck prints about a damaged journal.
var objects = regexp.MustCompile(`(?i)journal.*(error|corrupt|invalid|illegal|unsupported)|(error|invalid|clear|illegal|unsupported|while).*journal`)

// refusedJournal requires that e2fsck finds damage, too, in a log that was refused.
func refusedJournal(t *testing.T, image *content, err error) {
	if !strings.Contains(err.Error(), "journal") || strings.Contains(err.Error(), "external device") || strings.Contains(err.Error(), "journal_dev") {
		return // it is not the volume's own log
	}
	v := fsck(t, saveImage(t, image), "-fy")
	require.Regexp(t, objects, v.text, "refused (%v), but e2fsck has no objection", err)
}

// sameBytes compares two images: every block but the superblock, its backups and the journal's own blocks.
func sameBytes(t *testing.T, want, got *content) {
	t.Helper()
	sb, err := disk.DecodeSuperblock(got.slice(disk.SuperblockOffset, disk.SuperblockSize))
	require.NoError(t, err)
	bs := int64(sb.BlockSize())
	skip := map[uint64]bool{}
	for g := range sb.Groups() {
		skip[max(sb.GroupFirstBlock(g), sb.SuperBlockNo())] = sb.HasSuper(g)
	}
	if sb.JournalInum != 0 {
		// -c: some have damaged bitmaps, which are not needed for this.
		out, err := exec.Command("debugfs", "-c", "-R", fmt.Sprintf("blocks <%d>", sb.JournalInum), saveImage(t, got)).Output()
		require.NoError(t, err)
		require.NotEmpty(t, strings.Fields(string(out)), "debugfs lists no blocks of the journal")
		for _, w := range strings.Fields(string(out)) {
			n, err := strconv.ParseUint(w, 10, 64)
			require.NoError(t, err)
			skip[n] = true
		}
	}
	differ := map[uint64]bool{}
	for k := range got.chunks {
		compareChunk(want, got, k, bs, differ)
	}
	for k := range want.chunks {
		compareChunk(want, got, k, bs, differ)
	}
	for b := range differ {
		if !skip[b] && b < sb.BlocksCount {
			t.Errorf("block %d differs", b)
		}
	}
}

// compareChunk records the blocks of chunk k that differ.
func compareChunk(want, got *content, k, bs int64, differ map[uint64]bool) {
	step := min(bs, chunkSize)
	for off := k * chunkSize; off < (k+1)*chunkSize; off += step {
		if !bytes.Equal(want.slice(off, step), got.slice(off, step)) {
			differ[uint64(off/bs)] = true
		}
	}
}

// sameTrees compares files where blocks may differ after recovery: with orphans and fast commits.
func sameTrees(t *testing.T, image, after *content) {
	t.Helper()
	theirs, clean := repaired(t, image)
	ours, clean2 := repaired(t, after)
	require.True(t, clean, "e2fsck -fy of the original")
	require.True(t, clean2, "e2fsck -fy after the mount")
	a, _, err := look(t, theirs)
	require.NoError(t, err)
	b, _, err := look(t, ours)
	require.NoError(t, err)
	require.Equal(t, a.files, b.files)
}
