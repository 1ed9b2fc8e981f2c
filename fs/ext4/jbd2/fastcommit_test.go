package jbd2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestFastCommits: the records that we find in the kernel's fast-commit area are those that debugfs prints.
func TestFastCommits(t *testing.T) {
	for _, bs := range []string{"1024", "4096"} {
		t.Run(bs, func(t *testing.T) {
			dir := oracle(t, true)
			img := filepath.Join(dir, "fc.img")
			mkfs(t, img, 64, "-b", bs, "-O", "64bit,metadata_csum,fast_commit")
			mnt, umount := loopMount(t, img, "commit=1000")
			name := func(s string) string { return filepath.Join(mnt, "d", s) }
			do := func(err error) { require.NoError(t, err) }
			fsync := func(s string) {
				f, err := os.Open(name(s))
				do(err)
				do(f.Sync())
				do(f.Close())
			}
			do(os.Mkdir(name(""), 0o755))
			do(os.WriteFile(name("base"), []byte("hi"), 0o644))
			command(t, "sync", "-f", mnt) // a whole commit comes first
			do(os.WriteFile(name("one"), make([]byte, 5000), 0o644))
			fsync("one")
			for i := range 12 {
				do(os.WriteFile(name(fmt.Sprintf("with a long name %0100d", i)), nil, 0o644))
			}
			do(os.Link(name("base"), name("linked")))
			fsync("base")
			do(os.Remove(name("one")))
			do(os.Truncate(name("base"), 0))
			fsync("base")
			do(os.WriteFile(name("unsynced"), nil, 0o644))
			dirty := filepath.Join(dir, "dirty.img")
			disktest.CopyLive(t, img, dirty)
			umount()

			length, f := journalMap(t, dirty)
			d, err := loadTestDevice(dirty)
			do(err)
			c, err := NewCache(d, blockSizeOf(d.image), CacheOptions{})
			do(err)
			l, err := OpenLog(c, length, f)
			do(err)
			if l.Info().Features&FeatureFastCommit == 0 {
				t.Skip("SKIP: this kernel makes no fast commits")
			}
			r, err := l.Scan()
			do(err)
			do(r.Replay(nil))
			var got []string
			do(r.FastCommits(func(rec FCRecord) error {
				got = append(got, debugfsLine(rec))
				return nil
			}))
			var want []string
			_, area, _ := strings.Cut(command(t, "debugfs", "-c", "-R", "logdump", dirty), "*** Fast Commit Area ***")
			for line := range strings.SplitSeq(area, "\n") {
				if line != "" && !strings.HasPrefix(line, "tag HEAD") && !strings.HasPrefix(line, "tag TAIL") && !strings.HasPrefix(line, "tag PAD") {
					want = append(want, stray.ReplaceAllString(line, `"`))
				}
			}
			require.NotEmpty(t, want)
			require.Equal(t, want, got)
			require.Contains(t, strings.Join(got, "\n"), `CREAT_DENTRY`)
			require.NotContains(t, strings.Join(got, "\n"), `unsynced`)

			// A torn fast commit: what came before its checksum failed still counts.
			last, lastPos := 0, 0
			bsn := c.BlockSize()
			for n := l.fastFrom; n < l.fastTo; n++ {
				phys, _, _ := f(n)
				if be.Uint64(d.image[int(phys)*bsn:]) != 0 {
					last, lastPos = int(phys), int(n)
				}
			}
			require.NotZero(t, lastPos)
			d.image[last*bsn+20] ^= 1
			var less []string
			do(r.FastCommits(func(rec FCRecord) error {
				less = append(less, debugfsLine(rec))
				return nil
			}))
			require.NotEmpty(t, less)
			require.Less(t, len(less), len(got))
			require.Equal(t, got[:len(less)], less)

			do(r.Finish())
			require.Zero(t, l.Info().Features&FeatureFastCommit)
			do(c.Close())
		})
	}
}

// stray is what debugfs prints after a name: it reads on into the next record.
var stray = regexp.MustCompile(`[\x00-\x1f]+"$`)

func debugfsLine(rec FCRecord) string {
	le := binary.LittleEndian
	switch v := rec.(type) {
	case FCAddRange:
		e := v.Extent[:]
		n := le.Uint16(e[4:])
		if n > 1<<15 {
			n -= 1 << 15
		}
		return fmt.Sprintf("tag ADD_RANGE, inode %d, lblk %d, pblk %d, len %d", v.Ino, int32(le.Uint32(e)),
			uint64(le.Uint16(e[6:]))<<32|uint64(le.Uint32(e[8:])), n)
	case FCDelRange:
		return fmt.Sprintf("tag DEL_RANGE, inode %d, lblk %d, len %d", v.Ino, int32(v.Logical), int32(v.Len))
	case FCName:
		kind := map[FCTag]string{FCCreatTag: "CREAT_DENTRY", FCLinkTag: "ADD_ENTRY", FCUnlinkTag: "DEL_ENTRY"}[v.Tag]
		return fmt.Sprintf("tag %s, parent %d, ino %d, name \"%s\"", kind, v.Parent, v.Ino, v.Name)
	case FCInode:
		return fmt.Sprintf("tag INODE, inode %d", v.Ino)
	}
	return fmt.Sprintf("%T", rec)
}

func FuzzFastCommit(f *testing.F) {
	p := make([]byte, 1024)
	le := binary.LittleEndian
	le.PutUint16(p, uint16(FCHeadTag))
	le.PutUint16(p[2:], fcHeadSize)
	le.PutUint32(p[8:], 5)
	copy(p[12:], []byte{5, 0, 12, 0, 1, 0, 0, 0, 2, 0, 0, 0, 'n', 'a', 'm', 'e'})
	le.PutUint16(p[28:], uint16(FCTailTag))
	le.PutUint16(p[30:], uint16(1024-32))
	le.PutUint32(p[32:], 5)
	le.PutUint32(p[36:], crc32c(0, p[:36]))
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < 1024 {
			return
		}
		p = p[:1024]
		w := fcWalk{tid: 5}
		_ = w.block(p, nil)
		again := fcWalk{tid: 5, limit: w.good}
		n := 0
		if err := again.block(p, func(FCRecord) error { n++; return nil }); err != nil && w.good > 0 {
			t.Errorf("%d records were good, then %v", w.good, err)
		}
		if w.good > 0 && again.seen != w.good || n > w.good {
			t.Errorf("%d records good, %d seen, %d handed out", w.good, again.seen, n)
		}
	})
}

func TestFastCommitSeed(t *testing.T) {
	p := make([]byte, 1024)
	le := binary.LittleEndian
	le.PutUint16(p, uint16(FCHeadTag))
	le.PutUint16(p[2:], fcHeadSize)
	le.PutUint32(p[8:], 5)
	copy(p[12:], []byte{5, 0, 12, 0, 1, 0, 0, 0, 2, 0, 0, 0, 'n', 'a', 'm', 'e'})
	le.PutUint16(p[28:], uint16(FCTailTag))
	le.PutUint16(p[30:], uint16(1024-32))
	le.PutUint32(p[32:], 5)
	le.PutUint32(p[36:], crc32c(0, p[:36]))
	w := fcWalk{tid: 5}
	require.NoError(t, w.block(p, nil))
	require.Equal(t, 3, w.good)
	again := fcWalk{tid: 5, limit: 3}
	var got []FCRecord
	require.NoError(t, again.block(p, func(r FCRecord) error { got = append(got, r); return nil }))
	require.Equal(t, []FCRecord{FCName{FCUnlinkTag, 1, 2, []byte("name")}}, got)
	wrong := fcWalk{tid: 6}
	require.ErrorIs(t, wrong.block(p, nil), errFCEnd)
	require.Zero(t, wrong.good)
	require.False(t, bytes.Equal(p, make([]byte, 1024)))
}
