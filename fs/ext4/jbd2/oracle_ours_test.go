package jbd2

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernelRecoversOurs: the kernel and e2fsck bring home what our log holds.
func TestKernelRecoversOurs(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		sum  Checksum
		wide bool
	}{
		{"4K v3", []string{"-b", "4096", "-O", "64bit,metadata_csum"}, ChecksumV3, true},
		{"1K v3", []string{"-b", "1024", "-O", "64bit,metadata_csum"}, ChecksumV3, true},
		{"1K v3 32bit", []string{"-b", "1024", "-O", "^64bit,metadata_csum"}, ChecksumV3, false},
		{"4K v2", []string{"-b", "4096", "-O", "64bit,metadata_csum"}, ChecksumV2, true},
		{"1K v2 32bit", []string{"-b", "1024", "-O", "^64bit,metadata_csum"}, ChecksumV2, false},
		{"4K none", []string{"-b", "4096", "-O", "^64bit,^metadata_csum"}, ChecksumNone, false},
		{"1K none 64bit", []string{"-b", "1024", "-O", "64bit,^metadata_csum"}, ChecksumNone, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := oracle(t, true)
			img := filepath.Join(dir, "made.img")
			mkfs(t, img, 32, tc.args...)
			length, f := journalMap(t, img)
			free := freeBlocks(t, img, 900)
			d, err := loadTestDevice(img)
			require.NoError(t, err)
			bs := blockSizeOf(d.image)
			m := mountLog(t, d, bs, length, f, tc.sum, tc.wide, Config{})

			// Several times around the log, with blocks changed again and again, freed and used for data.
			want := map[Block][]byte{}
			for round := range 31 {
				if round == 30 {
					// Room enough for what follows: the checkpointer stays asleep, so all of it is in the log.
					require.NoError(t, m.j.Checkpoint())
				}
				for k := range 3 {
					h, err := m.j.Begin(100)
					require.NoError(t, err)
					for i := range 100 {
						b := free[(round*61+k*200+i)%len(free)]
						buf, err := m.c.New(b)
						require.NoError(t, err)
						buf.Lock()
						fillBlock(buf.Data(), uint64(round*1000+k*100+i))
						h.Dirty(buf)
						want[b] = bytes.Clone(buf.Data())
						buf.Unlock()
						buf.Put()
					}
					require.NoError(t, h.End())
				}
				require.NoError(t, m.j.Commit())
			}
			h, err := m.j.Begin(0)
			require.NoError(t, err)
			gone := free[:300]
			for _, b := range gone {
				h.Forget(b)
			}
			require.NoError(t, h.End())
			require.NoError(t, m.j.Commit())
			for _, b := range gone {
				buf, _ := d.Alloc(bs)
				copy(buf.Bytes(), bytes.Repeat([]byte("file data"), bs/9))
				want[b] = bytes.Clone(buf.Bytes()[:bs])
				require.NoError(t, d.Write(m.c.off(b), false, buf.Slice(0, bs)))
			}
			again := put(t, m.c, m.j, gone[7], 77) // journalled again after its revoke
			require.NoError(t, m.j.WaitCommit(again))
			binary.LittleEndian.PutUint64(want[gone[7]], 77)
			require.Greater(t, m.c.Stats().Checkpoints, int64(0))

			// The power goes.
			cut := bytes.Clone(d.durable)
			setRecover(cut, true)
			for _, b := range free {
				if w := want[b]; w != nil && !bytes.Equal(w, cut[int(b)*bs:][:bs]) {
					want[0] = nil // something is left to recover
				}
			}
			_, left := want[0]
			require.True(t, left, "everything was home already")
			delete(want, 0)
			check := func(path, who string) {
				got, err := os.ReadFile(path)
				require.NoError(t, err)
				for b, w := range want {
					require.True(t, bytes.Equal(w, got[int(b)*bs:][:bs]), "%s: block %d", who, b)
				}
			}
			fsck := filepath.Join(dir, "fsck.img")
			require.NoError(t, os.WriteFile(fsck, cut, 0o600))
			dump := command(t, "debugfs", "-R", "logdump", fsck)
			require.NotContains(t, dump, "checksum")
			require.Contains(t, dump, "type 2 (commit block)")
			require.Contains(t, dump, "type 5 (revoke table)")
			command(t, "e2fsck", "-y", "-E", "journal_only", fsck)
			check(fsck, "e2fsck")
			command(t, "e2fsck", "-fn", fsck)

			kernel := filepath.Join(dir, "kernel.img")
			require.NoError(t, os.WriteFile(kernel, cut, 0o600))
			_, umount := loopMount(t, kernel, "")
			umount()
			check(kernel, "kernel")
			command(t, "e2fsck", "-fn", kernel)

			// A clean close leaves nothing to do.
			require.NoError(t, m.j.Close())
			require.NoError(t, m.c.Close())
			closed := filepath.Join(dir, "closed.img")
			require.NoError(t, os.WriteFile(closed, d.durable, 0o600))
			check(closed, "close")
			require.Contains(t, command(t, "dumpe2fs", "-h", closed), "Journal start:            0")
			command(t, "e2fsck", "-fn", closed)
			mnt, umount := loopMount(t, closed, "")
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o600))
			umount()
			command(t, "e2fsck", "-fn", closed)
		})
	}
}
