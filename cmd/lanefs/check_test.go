package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// checked runs lanefs check on something and wants an image not to be changed by it.
func (p *place) checked(what string) *checkReport {
	p.t.Helper()
	before, err := os.ReadFile(what)
	image := err == nil
	r := &checkReport{}
	out, said, err := p.run("check", "--json", what)
	require.Empty(p.t, said)
	require.NoError(p.t, json.Unmarshal([]byte(out), r))
	status := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	}
	require.Equal(p.t, r.status(), status)
	if image {
		after, err := os.ReadFile(what)
		require.NoError(p.t, err)
		require.True(p.t, bytes.Equal(before, after), "check has written")
	}
	out, _, _ = p.run("check", what)
	require.NotEmpty(p.t, out)
	return r
}

// umount takes a mount away, though some program that looks around the system may hold it for a moment.
func (p *place) umount(mnt string) {
	p.t.Helper()
	p.eventually("umount", func() bool {
		_, said, err := p.run("umount", mnt)
		require.True(p.t, err == nil || strings.Contains(said, "mount is busy"), "%s", said)
		return err == nil
	})
}

// TestCheckAgainstE2fsprogs: features, counts and free extents are what dumpe2fs and e2freefrag say.
func TestCheckAgainstE2fsprogs(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64, "-L", "a label", "-O", "metadata_csum_seed,orphan_file"), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	for i := range 60 {
		require.NoError(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint(i)), make([]byte, 4096<<(i%7)), 0o644))
	}
	for i := 0; i < 60; i += 3 {
		require.NoError(t, os.Remove(filepath.Join(mnt, fmt.Sprint(i))))
	}
	tool(t, "sync", mnt)
	live := p.checked(mnt)
	p.umount(mnt)
	r := p.checked(img)

	require.Equal(t, "in use", live.Journal.State)
	require.Equal(t, "clean", r.Journal.State)
	require.Equal(t, ext4.ReadWrite, live.Mount)
	require.Equal(t, ext4.ReadWrite, r.Mount)
	require.Empty(t, r.Damage)
	require.Equal(t, "a label", r.Label)
	require.Equal(t, r.Files, live.Files)
	require.Equal(t, uint64(42), r.Files.Files, "40 files, the root and lost+found")

	dump := tool(t, "dumpe2fs", "-h", img)
	field := func(text, name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `: +(.*)$`).FindStringSubmatch(text)
		require.NotNil(t, m, "%s in %s", name, text)
		return strings.TrimSpace(m[1])
	}
	var names []string
	for _, f := range r.Features {
		names = append(names, f.Name)
	}
	require.ElementsMatch(t, strings.Fields(field(dump, "Filesystem features")), names)
	require.Equal(t, field(dump, "Filesystem UUID"), r.UUID)
	require.Equal(t, field(dump, "Free blocks"), fmt.Sprint(r.Free))
	require.Equal(t, field(dump, "Free inodes"), fmt.Sprint(r.FreeInodes))
	require.Equal(t, field(dump, "Total journal blocks"), fmt.Sprint(r.Journal.Blocks))

	frag, err := exec.Command("e2freefrag", img).Output()
	require.NoError(t, err)
	require.Equal(t, field(string(frag), "Num. free extent"), fmt.Sprint(r.FreeSpace.Extents))
	largest, err := strconv.Atoi(strings.TrimSuffix(field(string(frag), "Max. free extent"), " KB"))
	require.NoError(t, err)
	require.EqualValues(t, largest<<10, r.FreeSpace.Largest)
	var n uint64
	var size int64
	for _, s := range r.FreeSpace.Sizes {
		n += s.Extents
		size += s.Bytes
	}
	require.Equal(t, r.FreeSpace.Extents, n)
	require.EqualValues(t, r.Free*uint64(r.BlockSize), size)
}

// TestCheckPieces: a file in pieces is told, as filefrag tells it.
func TestCheckPieces(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	f, err := os.Create(filepath.Join(mnt, "holes"))
	require.NoError(t, err)
	for i := range int64(25) { // each block with a file of its own behind it
		_, err := f.WriteAt(make([]byte, 4096), i*8192)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint(i)), make([]byte, 4096), 0o644))
	}
	st, err := f.Stat()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p.umount(mnt)
	r := p.checked(img)
	out := tool(t, "debugfs", "-R", "ex holes", img)
	last, pieces := "", 0
	for _, m := range regexp.MustCompile(`(?m)^ *\d+/ *\d+ +\d+/ *\d+ +\d+ - +\d+ +(\d+) - +(\d+)`).FindAllStringSubmatch(out, -1) {
		if n, _ := strconv.Atoi(last); fmt.Sprint(n+1) != m[1] {
			pieces++
		}
		last = m[2]
	}
	require.Greater(t, pieces, 1, out)
	require.Equal(t, fileExtent{Inode: uint32(inodeOf(st)), Pieces: pieces, Bytes: 25 * 4096}, r.Files.Most)
}

// TestCheckVerdicts: what would be refused or mounted read-only, and why. The mount does what was said. make test takes every second.
func TestCheckVerdicts(t *testing.T) {
	for k, c := range []struct {
		name    string
		mkfs    []string
		debugfs string
		journal string
		mount   ext4.Support
		why     string
		status  int
	}{
		{"default", nil, "", "clean", ext4.ReadWrite, "", 0},
		{"without a journal", []string{"-O", "^has_journal,^orphan_file"}, "", "none", ext4.ReadWrite, "", 0},
		{"encrypt", []string{"-O", "encrypt"}, "", "clean", ext4.Refused, "encrypt", 8},
		{"casefold", []string{"-O", "casefold"}, "", "clean", ext4.Refused, "casefold", 8},
		{"mmp", []string{"-O", "mmp"}, "", "clean", ext4.Refused, "mmp", 8},
		{"unknown incompat", nil, "feature FEATURE_I30", "clean", ext4.Refused, "unknown feature 0x40000000", 8},
		{"external journal", nil, "ssv journal_inum 0", "external", ext4.Refused, "journal is on an external device", 8},
		{"bigalloc", []string{"-O", "bigalloc"}, "", "clean", ext4.ReadOnly, "bigalloc", 0},
		{"quota", []string{"-O", "quota"}, "", "clean", ext4.ReadOnly, "quota", 0},
		{"verity", []string{"-O", "verity"}, "", "clean", ext4.ReadOnly, "verity", 0},
		{"shared_blocks", nil, "feature shared_blocks", "clean", ext4.ReadOnly, "shared_blocks", 0},
		{"unknown ro_compat", nil, "feature FEATURE_R30", "clean", ext4.ReadOnly, "unknown feature 0x40000000", 0},
		{"errors", nil, "ssv state 2", "clean", ext4.ReadOnly, "errors that were met before", 4},
		{"not clean", []string{"-O", "^has_journal,^orphan_file"}, "ssv state 0", "none", ext4.ReadOnly, "was not unmounted cleanly", 4},
	} {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			img, mnt := p.image("image", 32, c.mkfs...), p.mkdir("mnt")
			if c.debugfs != "" {
				tool(t, "debugfs", "-w", "-R", c.debugfs, img)
			}
			r := p.checked(img)
			require.Equal(t, c.mount, r.Mount)
			require.Equal(t, c.status, r.status())
			require.Equal(t, c.journal, r.Journal.State)
			require.Contains(t, strings.Join(r.Reasons, "; "), c.why)
			require.Equal(t, c.mount == ext4.Refused, r.FreeSpace == nil && r.Files == nil && c.name != "bigalloc")
			if c.mount == ext4.Refused {
				require.Contains(t, p.fails("mount", img, mnt), c.why)
				return
			}
			_, said, err := p.run("mount", img, mnt)
			require.NoError(t, err, said)
			if c.mount == ext4.ReadOnly { // the terminal says so, and why
				require.Contains(t, said, "is mounted read-only: ")
				require.Contains(t, said, c.why)
			} else {
				require.Empty(t, said)
			}
			s, err := p.stat(mnt)
			require.NoError(t, err)
			require.Equal(t, c.mount == ext4.ReadOnly, s.ReadOnly)
			live := p.checked(mnt)
			require.Equal(t, c.mount, live.Mount)
			require.Equal(t, r.Reasons, live.Reasons)
			p.umount(mnt)
		})
	}
	p := newPlace(t)
	require.Contains(t, p.fails("check", p.dir), "is not a mount point")
	none := p.path("none")
	require.NoError(t, os.WriteFile(none, make([]byte, 1<<20), 0o644))
	status, said := p.failsWith("check", none)
	require.Contains(t, said, "not an ext4 volume: it is blank")
	require.Equal(t, fsckOperational, status)
	status, _ = p.failsWith("check")
	require.Equal(t, fsckUsage, status)
}

// TestCheckLateError: the last error's time may be beyond the years that RFC 3339 has. The answer has the last time of those; there was none.
func TestCheckLateError(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32, "-O", "^metadata_csum,^metadata_csum_seed"), p.mkdir("mnt")
	f, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	for _, c := range []struct{ off, n int }{{0x194, 4}, {0x1CC, 4}, {0x279, 1}} { // s_error_count, s_last_error_time, s_last_error_time_hi
		_, err := f.WriteAt(bytes.Repeat([]byte{0xff}, c.n), int64(disk.SuperblockOffset+c.off))
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	require.Equal(t, last, p.checked(img).Errors.Last)
	require.Contains(t, p.ok("check", img), "the last on 9999-12-31 23:59:59")
	p.ok("mount", img, mnt)
	require.Equal(t, last, p.checked(mnt).Errors.Last)
	p.umount(mnt)
}

// TestCheckBitmap: a bitmap whose checksum is wrong is damage, whatever the superblock says.
func TestCheckBitmap(t *testing.T) {
	p := newPlace(t)
	img := p.image("image", 32)
	m := disktest.Open(t, img)
	block := m.Group(0).InodeBitmap
	b := m.Block(block)
	b[100] ^= 0xff
	m.SetBlock(block, b)
	r := p.checked(img)
	require.Equal(t, fsckErrors, r.status())
	require.Contains(t, strings.Join(r.Damage, ""), "checksum")
	out, _, _ := p.run("check", img)
	require.Contains(t, out, "it is damaged: run e2fsck -f on it first")
	require.NotContains(t, out, "mounts it read-write")
}

// TestCheckProtected: a block device that refuses writes is mounted with ro only, which mount and check both say.
func TestCheckProtected(t *testing.T) {
	p := newPlace(t)
	dev := loopOver(t, p.image("image", 32), "-r")
	require.Contains(t, p.ok("check", dev), "mounts it with -o ro only: the device is write-protected")
	require.Contains(t, p.fails("mount", dev, p.mkdir("mnt")), "lift its write protection with blockdev --setrw")
}

// TestCheckProtectedNamespace: a drive's namespace that refuses writes is mounted read-only, and check says why and what lifts it; what a software
// controller was opened for is no protection. The drive is a software controller by another type.
func TestCheckProtectedNamespace(t *testing.T) {
	p := newPlace(t)
	s, err := openDevice(&mountConfig{Config: mountopt.Config{GPU: "host", ReadOnly: true}, Device: p.image("image", 32)}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	verdict := func() (string, *checkReport) {
		r, err := s.check("0000:ff:1f.7", &progressBar{out: io.Discard})
		require.NoError(t, err)
		require.NoError(t, s.vol.Close())
		s.vol = nil
		return r.verdict(), r
	}
	said, r := verdict()
	require.Equal(t, "mounts it read-write", said)
	require.False(t, r.Protected)
	soft := s.ctl
	s.ctl = struct{ controller.Transport }{soft}
	said, r = verdict()
	s.ctl = soft
	require.Contains(t, said, "mounts it read-only: namespace 1 of ")
	require.Contains(t, said, "is write-protected (nvme set-feature --namespace-id=1 --feature-id=0x84 --value=0")
	require.True(t, r.Protected)
	require.Equal(t, ext4.ReadOnly, r.Mount)
	require.Zero(t, r.status())
}

// TestCheckOfAnother: root checks the mount of an ordinary user, whose directory answers root with EACCES.
func TestCheckOfAnother(t *testing.T) {
	p := newUserPlace(t)
	img, mnt := p.image("image", 32, "-E", "root_owner="+itoa(p.uid())+":"+itoa(p.uid())), p.mkdir("mnt")
	p.own(img, mnt)
	p.env = append(p.env, "XDG_RUNTIME_DIR=") // root looks where a user's daemons are by default
	p.ok("mount", img, mnt)
	user := p.cred
	p.cred = nil
	require.Equal(t, ext4.ReadWrite, p.checked(mnt).Mount)
	p.cred = user
	p.umount(mnt)
}

// TestCheckNeedsRecovery looks at an image as a crash leaves it, and at its journal through e2fsprogs' eyes.
func TestCheckNeedsRecovery(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "f"), []byte("x"), 0o644))
	tool(t, "sync", mnt)
	crashed := p.path("crashed")
	tool(t, "cp", "--sparse=always", img, crashed)
	p.umount(mnt)
	r := p.checked(crashed)
	require.Equal(t, "needs recovery", r.Journal.State)
	require.NotZero(t, r.Journal.Transactions)
	require.Equal(t, ext4.ReadWrite, r.Mount)
	require.Equal(t, uint64(2), r.Files.Files-1, "the root, lost+found and the file, as they will be")
	require.Contains(t, p.ok("check", crashed), "to recover")
}

func inodeOf(st os.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }
