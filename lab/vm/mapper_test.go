package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mapping is a device of the device mapper, over a block device, that a test makes fail.
type mapping struct {
	t       *testing.T
	below   string
	sectors int64
	dev     string
}

const mappingName = "labfault"

// newMapping maps all of a block device.
func newMapping(t *testing.T, below string) *mapping {
	t.Helper()
	if _, err := exec.LookPath("dmsetup"); err != nil {
		t.Skip("SKIP: no dmsetup in the guest")
	}
	n, err := strconv.ParseInt(strings.TrimSpace(must(t, "blockdev", "--getsz", below)), 10, 64)
	require.NoError(t, err)
	m := &mapping{t: t, below: below, sectors: n}
	must(t, "dmsetup", "create", "--noudevsync", mappingName, "--table", m.good())
	m.dev = "/dev/dm-" + strings.TrimSpace(must(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", mappingName)) // there is no udev for its name
	t.Cleanup(func() {
		run("dmsetup", "resume", "--noudevsync", mappingName)
		run("dmsetup", "remove", "--noudevsync", mappingName)
	})
	return m
}

func (m *mapping) good() string { return fmt.Sprintf("0 %d linear %s 0", m.sectors, m.below) }

// bad is the table with an error in [from, from+n).
func (m *mapping) bad(from, n int64) string {
	var lines []string
	if from > 0 {
		lines = append(lines, fmt.Sprintf("0 %d linear %s 0", from, m.below))
	}
	lines = append(lines, fmt.Sprintf("%d %d error", from, n))
	if end := from + n; end < m.sectors {
		lines = append(lines, fmt.Sprintf("%d %d linear %s %d", end, m.sectors-end, m.below, end))
	}
	return strings.Join(lines, "\n")
}

// load has the device go by another table.
func (m *mapping) load(table string) {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "table")
	require.NoError(m.t, os.WriteFile(file, []byte(table+"\n"), 0o600))
	must(m.t, "dmsetup", "suspend", "--noflush", mappingName)
	must(m.t, "dmsetup", "load", mappingName, file)
	must(m.t, "dmsetup", "resume", "--noudevsync", mappingName)
}

var journalExtent = regexp.MustCompile(`\(0-[0-9]+\):([0-9]+)-`)

// journalAt is the first sector of the journal of a volume with blocks of 4 KiB.
func journalAt(t *testing.T, dev string) int64 {
	t.Helper()
	m := journalExtent.FindStringSubmatch(must(t, "debugfs", "-R", "stat <8>", dev))
	require.NotNil(t, m, "the journal is not one extent")
	n, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(t, err)
	return n * 8
}

// keep writes a file durably.
func keep(path, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Sync()
}

// TestMapperFails: a block device below a mount that begins to fail, in the middle of the journal or everywhere, or that is taken away: what was synchronized
// stays, what fails is said, nothing hangs, and e2fsck has nothing to repair after the replay.
func TestMapperFails(t *testing.T) {
	dev := disk(t, nvme0)
	for _, c := range []struct {
		name string
		kept int // of three files, of which the first is synchronized before
		fail func(m *mapping, journal int64)
	}{
		{"everywhere", 1, func(m *mapping, _ int64) { m.load(m.bad(0, m.sectors)) }},
		{"behind the journal's superblock", 1, func(m *mapping, journal int64) { m.load(m.bad(journal+8, 1024*8)) }},
		{"the journal's superblock", 3, func(m *mapping, journal int64) { m.load(m.bad(journal, 8)) }},                 // which commits do not write
		{"removed", 1, func(m *mapping, _ int64) { run("dmsetup", "remove", "--noudevsync", "--force", mappingName) }}, // which fails: it is open, and fails from now on
	} {
		t.Run(c.name, func(t *testing.T) {
			mkfs(t, dev, "-b", "4096")
			m := newMapping(t, dev)
			dir := mount(t, m.dev)
			journal := journalAt(t, dev)
			var kept []string
			for i := range 3 {
				if i == 1 {
					c.fail(m, journal)
				}
				if name := fmt.Sprint("file", i); keep(dir+"/"+name, name) == nil {
					kept = append(kept, name)
				}
			}
			require.Len(t, kept, c.kept)
			require.Contains(t, refused(t, "umount", dir), "journal aborted")
			m.load(m.good())
			again := mount(t, m.dev)
			for _, name := range kept {
				b, err := os.ReadFile(again + "/" + name)
				require.NoError(t, err)
				require.Equal(t, name, string(b))
			}
			lanefs(t, "umount", again)
			run("e2fsck", "-p", m.dev) // takes the error mark away
			must(t, "e2fsck", "-fn", m.dev)
		})
	}
}

// TestMapperWaits: what a suspended device keeps waiting goes on when it is resumed, as after a path of a drive came back; a device that answers no read
// does not keep a tag of another from being found.
func TestMapperWaits(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev, "-b", "4096")
	m := newMapping(t, dev)
	dir := mount(t, m.dev)
	require.NoError(t, keep(dir+"/kept", "kept"))
	must(t, "dmsetup", "suspend", "--noflush", mappingName)
	done := make(chan error, 1)
	go func() { done <- keep(dir+"/later", "later") }()
	other := disk(t, shared0)
	const label = "beside"
	mkfs(t, other, "-L", label)
	beside := mount(t, "LABEL="+label)
	lanefs(t, "umount", beside)
	select {
	case err := <-done:
		t.Fatalf("written to a suspended device: %v", err)
	default:
	}
	must(t, "dmsetup", "resume", "--noudevsync", mappingName)
	require.NoError(t, <-done)
	lanefs(t, "umount", dir)
	must(t, "e2fsck", "-fn", m.dev)
}

// TestMapperShrinks: a device that lost its end is truncated, and what it still has is read.
func TestMapperShrinks(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev, "-b", "4096")
	m := newMapping(t, dev)
	dir, log := mountLogged(t, m.dev)
	require.NoError(t, keep(dir+"/kept", "kept"))
	m.load(fmt.Sprintf("0 %d linear %s 0", m.sectors/2, dev))
	require.Error(t, keep(dir+"/lost", "lost"), "a flush looks at the size")
	refused(t, "umount", dir)
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(b), "the image was truncated")
	require.Contains(t, refused(t, "mount", m.dev, t.TempDir()), "is truncated")
	m.load(m.good())
	dir = mount(t, m.dev)
	b, err = os.ReadFile(dir + "/kept")
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	lanefs(t, "umount", dir)
	run("e2fsck", "-p", m.dev)
	must(t, "e2fsck", "-fn", m.dev)
}

// TestMapperNames: a volume is one medium by whatever device it is named: the mapped one, that below, a loop device over either. Halves of a device are two.
func TestMapperNames(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev, "-b", "4096")
	m := newMapping(t, dev)
	dir := mount(t, m.dev)
	loop := strings.TrimSpace(must(t, "losetup", "-f"))
	must(t, "losetup", loop, m.dev)
	t.Cleanup(func() { run("losetup", "-d", loop) })
	for _, name := range []string{dev, loop} {
		require.Contains(t, refused(t, "mount", name, t.TempDir()), "in use", name)
		require.Contains(t, refused(t, "bench", "--time", "1s", name), "in use", name)
	}
	require.Error(t, exec.Command("mkfs.ext4", "-q", m.dev).Run())
	lanefs(t, "umount", dir)
	run("losetup", "-d", loop)

	half := m.sectors / 2
	must(t, "dmsetup", "create", "--noudevsync", "labhalf", "--table", fmt.Sprintf("0 %d linear %s %d", half, dev, half))
	t.Cleanup(func() { run("dmsetup", "remove", "--noudevsync", "labhalf") })
	second := "/dev/dm-" + strings.TrimSpace(must(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", "labhalf"))
	m.load(fmt.Sprintf("0 %d linear %s 0", half, dev))
	mkfs(t, m.dev)
	mkfs(t, second)
	one, two := mount(t, m.dev), mount(t, second)
	require.NoError(t, keep(one+"/file", "1"))
	require.NoError(t, keep(two+"/file", "2"))
	lanefs(t, "umount", one)
	m.load(m.good()) // now it has the bytes of the other, too
	require.Contains(t, refused(t, "mount", m.dev, t.TempDir()), "in use")
	lanefs(t, "umount", two)
	must(t, "e2fsck", "-fn", second)
}

// TestBlockDeviceGone: a drive that is taken from below a mount of its block device ends the mount with an error, and what was synchronized is there when it is back.
func TestBlockDeviceGone(t *testing.T) {
	dev := disk(t, shared0)
	mkfs(t, dev)
	dir := mount(t, dev)
	require.NoError(t, keep(dir+"/kept", "kept"))
	require.NoError(t, os.WriteFile("/sys/bus/pci/devices/"+shared0+"/remove", []byte("1"), 0))
	require.Error(t, keep(dir+"/lost", "lost"))
	require.Contains(t, refused(t, "umount", dir), "not durable")
	require.NoError(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
	dev = disk(t, shared0)
	dir = mount(t, dev)
	b, err := os.ReadFile(dir + "/kept")
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	lanefs(t, "umount", dir)
	run("e2fsck", "-p", dev)
	must(t, "e2fsck", "-fn", dev)
}
