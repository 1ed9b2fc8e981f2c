package jbd2

import (
	"bytes"
	"encoding/binary"
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
			command(t, "umount", dir)
		}
	}
	t.Cleanup(umount)
	return dir, umount
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	command(t, "cp", "--sparse=always", from, to)
}

var extentLine = regexp.MustCompile(`\((\d+)(?:-(\d+))?\):(\d+)(?:-(\d+))?`)

// journalMap asks debugfs where the journal lies.
func journalMap(t *testing.T, img string) (uint32, MapFunc) {
	t.Helper()
	out := command(t, "debugfs", "-R", "stat <8>", img)
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

// dirtyImage lets the kernel fill a volume and copies it while its log is not written home.
func dirtyImage(t *testing.T, dir, options string, mib int, mkfsArgs ...string) string {
	t.Helper()
	img := filepath.Join(dir, "kernel.img")
	mkfs(t, img, mib, mkfsArgs...)
	mnt, umount := loopMount(t, img, options)
	magicBlock := make([]byte, 8192)
	be.PutUint32(magicBlock, magic)
	be.PutUint32(magicBlock[4096:], magic)
	sync := func(path string) {
		f, err := os.Open(path)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, f.Close())
	}
	for i := range 40 {
		d := filepath.Join(mnt, fmt.Sprintf("dir%d", i))
		require.NoError(t, os.Mkdir(d, 0o755))
		for k := range 20 {
			name := filepath.Join(d, fmt.Sprintf("a file with a long name to fill directories %d", k))
			require.NoError(t, os.WriteFile(name, magicBlock[:100*k+4096*(k%2)], 0o644))
		}
		if i%4 == 3 {
			// Frees directory blocks that are in the log already: revokes.
			require.NoError(t, os.RemoveAll(filepath.Join(mnt, fmt.Sprintf("dir%d", i-1))))
		}
		if i%3 == 0 {
			sync(d)
		}
		if i%10 == 9 {
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "reuse"), bytes.Repeat([]byte("data"), 64<<10), 0o644))
			sync(filepath.Join(mnt, "reuse"))
		}
	}
	sync(mnt)
	// What comes last is not synced: it may be in the log or not, never half.
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "unsynced"), []byte("x"), 0o644))
	dirty := filepath.Join(dir, "dirty.img")
	copyFile(t, img, dirty)
	umount()
	return dirty
}

// TestRecoverKernel: what the kernel left in its log is brought home as e2fsck and the kernel bring it home.
func TestRecoverKernel(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		mib           int
		args          []string
		features      Features
		sum1          bool
	}{
		{"4K", "", 32, []string{"-b", "4096", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"1K", "", 24, []string{"-b", "1024", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"2K", "", 24, []string{"-b", "2048", "-O", "^64bit,metadata_csum"}, FeatureChecksumV3 | FeatureRevoke, false},
		{"4K plain", "", 32, []string{"-b", "4096", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"1K plain", "", 24, []string{"-b", "1024", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"4K 64bit", "", 32, []string{"-b", "4096", "-O", "64bit,^metadata_csum"}, Feature64Bit | FeatureRevoke, false},
		{"1K checksum 1", "journal_checksum", 24, []string{"-b", "1024", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, true},
		{"4K async", "journal_async_commit,data=writeback", 32, []string{"-b", "4096", "-O", "64bit,metadata_csum"}, Feature64Bit | FeatureChecksumV3 | FeatureAsyncCommit | FeatureRevoke, false},
		{"1K data=journal", "data=journal", 32, []string{"-b", "1024", "-O", "64bit,metadata_csum", "-J", "size=8"}, Feature64Bit | FeatureChecksumV3 | FeatureRevoke, false},
		{"4K data=journal", "data=journal", 48, []string{"-b", "4096", "-O", "^64bit,^metadata_csum"}, FeatureRevoke, false},
		{"ext3", "", 24, []string{"-b", "1024", "-O", "^extent,^64bit,^metadata_csum,^flex_bg"}, FeatureRevoke, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := oracle(t, true)
			dirty := dirtyImage(t, dir, tc.options, tc.mib, tc.args...)
			length, f := journalMap(t, dirty)
			super, _, _ := f(0)

			d, err := loadTestDevice(dirty)
			require.NoError(t, err)
			before := bytes.Clone(d.image)
			bs := blockSizeOf(d.image)
			c, err := NewCache(d, bs, CacheOptions{})
			require.NoError(t, err)
			l, err := OpenLog(c, length, f)
			require.NoError(t, err)
			info := l.Info()
			require.Equal(t, tc.features, info.Features|FeatureRevoke, "%v", info.Features)
			require.Equal(t, tc.sum1, info.Checksum1)
			r, err := l.Scan()
			require.NoError(t, err)
			require.True(t, r.Needed())
			require.NotZero(t, r.Blocks())
			require.Equal(t, before, d.image, "a scan writes nothing")

			// The overlay shows what Replay will write.
			shown := map[Block][]byte{}
			c.SetOverlay(r.Overlay())
			for b := range r.blocks {
				buf, err := c.Get(b)
				require.NoError(t, err)
				shown[b] = bytes.Clone(buf.Data())
				buf.Put()
			}
			c.SetOverlay(nil)
			c.Invalidate()
			require.NoError(t, r.Replay())
			for b, p := range shown {
				require.True(t, bytes.Equal(p, d.durable[int(b)*bs:][:bs]), "block %d", b)
			}
			require.NoError(t, r.Finish())
			require.NoError(t, c.Close())
			t.Logf("%d transactions, %d revoke blocks, %d blocks, features %v", r.Transactions, r.RevokeBlocks, r.Blocks(), info.Features)

			fsck := filepath.Join(dir, "fsck.img")
			copyFile(t, dirty, fsck)
			command(t, "e2fsck", "-y", "-E", "journal_only", fsck)
			theirs, err := os.ReadFile(fsck)
			require.NoError(t, err)
			sameVolume(t, theirs, d.durable, super, "e2fsck")

			ours := filepath.Join(dir, "ours.img")
			img := bytes.Clone(d.durable)
			setRecover(img, false)
			require.NoError(t, os.WriteFile(ours, img, 0o600))
			command(t, "e2fsck", "-fn", ours)

			kernel := filepath.Join(dir, "recovered.img")
			copyFile(t, dirty, kernel)
			mnt, umount := loopMount(t, kernel, "")
			tree := command(t, "find", mnt, "-printf", "%P %s %m %i\n")
			umount()
			mnt, umount = loopMount(t, ours, "ro")
			require.Equal(t, tree, command(t, "find", mnt, "-printf", "%P %s %m %i\n"))
			umount()
		})
	}
}

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

// TestShutdownKernel: a volume whose kernel driver was shut down with and without a last flush of the log.
func TestShutdownKernel(t *testing.T) {
	const (
		iocShutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
		logFlush    = 1
		noLogFlush  = 2
	)
	for name, flag := range map[string]int{"logflush": logFlush, "nologflush": noLogFlush} {
		t.Run(name, func(t *testing.T) {
			dir := oracle(t, true)
			img := filepath.Join(dir, "kernel.img")
			mkfs(t, img, 32, "-b", "4096", "-O", "64bit,metadata_csum,orphan_file")
			mnt, umount := loopMount(t, img, "")
			for i := range 50 {
				require.NoError(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint(i)), make([]byte, i*1000), 0o644))
			}
			f, err := os.Open(mnt)
			require.NoError(t, err)
			require.NoError(t, f.Sync())
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "late"), nil, 0o644))
			err = unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, flag)
			f.Close()
			require.NoError(t, err, "shutdown ioctl")
			umount()

			length, lf := journalMap(t, img)
			d, err := loadTestDevice(img)
			require.NoError(t, err)
			m := mountLog(t, d, 4096, length, lf, ChecksumV3, true, Config{})
			require.NotZero(t, m.r.Blocks())
			require.NoError(t, m.j.Close())
			require.NoError(t, m.c.Close())
			setRecover(d.durable, false)
			ours := filepath.Join(dir, "ours.img")
			require.NoError(t, os.WriteFile(ours, d.durable, 0o600))
			mnt, umount = loopMount(t, ours, "")
			list, err := os.ReadDir(mnt)
			require.NoError(t, err)
			late := 0
			if flag == logFlush {
				late = 1
			}
			require.Len(t, list, 50+1+late, "files and lost+found")
			umount()
			command(t, "e2fsck", "-fn", ours)
		})
	}
}
