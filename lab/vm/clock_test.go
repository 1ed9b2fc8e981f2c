package vm

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// setClock sets the machine's clock until the test ends.
func setClock(t testing.TB, at time.Time) {
	t.Helper()
	began := time.Now()
	t.Cleanup(func() { stepTo(t, began.Add(time.Since(began))) }) // Since goes by the clock that nobody sets
	stepTo(t, at)
}

func stepTo(t testing.TB, at time.Time) {
	t.Helper()
	tv := unix.Timeval{Sec: at.Unix(), Usec: int64(at.Nanosecond() / 1000)}
	require.NoError(t, unix.Settimeofday(&tv))
}

func sinceBoot(t testing.TB) time.Duration {
	var at unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &at))
	return time.Duration(at.Nano())
}

// TestEras: under the clocks of machines without a battery, or of later times, LaneFS leaves the times that the kernel leaves: of files, by stat and on disk, of removed files, and in
// the superblock. e2fsck says the same of both.
func TestEras(t *testing.T) {
	skipOthers(t, 1)
	dev := disk(t, nvme0)
	boot := time.Unix(0, 0).UTC().Add(sinceBoot(t)) // the kernel takes no earlier one
	early := boot.Truncate(time.Second).Add(20 * time.Minute)
	for size, eras := range map[string][]time.Time{
		"256": {early, time.Date(2106, 2, 7, 6, 28, 17, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)},
		"128": {early, time.Date(2040, 5, 5, 12, 0, 0, 0, time.UTC)},
	} {
		for _, at := range eras {
			t.Run(size+"/"+at.Format(time.DateOnly), func(t *testing.T) {
				kernel := inEra(t, dev, size, at, func(t *testing.T, f func(dir string)) { kernelMount(t, dev, f) })
				ours := inEra(t, dev, size, at, func(t *testing.T, f func(dir string)) {
					dir := mount(t, dev)
					f(dir)
					lanefs(t, "umount", dir)
				})
				require.Equal(t, kernel, ours)
			})
		}
	}
}

// oddTimes are what programs set: before and after all that inodes can say, and at their limits.
var oddTimes = []unix.Timespec{{Sec: -1 << 40}, {Sec: -1<<31 - 1, Nsec: 5}, {Sec: -1 << 31, Nsec: 5}, {Sec: -1, Nsec: 999999999}, {}, {Nsec: 1}, {Sec: 1<<31 - 1, Nsec: 5}, {Sec: 1 << 31, Nsec: 5}, {Sec: 1<<32 - 1, Nsec: 5},
	{Sec: 1 << 32, Nsec: 5}, {Sec: 3<<32 + 1<<31 - 1, Nsec: 5}, {Sec: 3<<32 + 1<<31, Nsec: 5}, {Sec: 1 << 40}}

// inEra makes a volume of inodes of a size by the machine's clock, uses it by another, and describes what is left: all times, with words for those of use.
func inEra(t *testing.T, dev, size string, at time.Time, mounted func(*testing.T, func(dir string))) map[string]string {
	t.Helper()
	seen := map[string]string{}
	must(t, "mkfs.ext4", "-q", "-F", "-I", size, "-O", "orphan_file", dev, "16M")
	past := time.Now()
	kernelMount(t, dev, func(dir string) {
		for _, name := range []string{"appended", "truncated", "read", "readagain", "owned", "removed", "kept", "from", "setnow"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
		}
		for k := range oddTimes {
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("odd%02d", k)), []byte("odd"), 0o644))
		}
		require.NoError(t, os.Mkdir(filepath.Join(dir, "listed"), 0o755))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "rmdir"), 0o755))
	})
	t.Run("in", func(t *testing.T) {
		setClock(t, at)
		word := func(sec int64, nsec uint32) string {
			some := ""
			if nsec != 0 {
				some = fmt.Sprintf(".%d", nsec)
			}
			switch now := time.Unix(sec, 0); {
			case now.Sub(at).Abs() < 10*time.Minute:
				some = "now" + strings.Repeat(".", min(len(some), 1))
			case now.Sub(past).Abs() < 10*time.Minute:
				some = "past" + strings.Repeat(".", min(len(some), 1))
			default:
				some = fmt.Sprint(sec) + some
			}
			return some
		}
		stats := func(when, dir string) {
			names, err := filepath.Glob(dir + "/*")
			require.NoError(t, err)
			for _, name := range append(names, dir) {
				var st unix.Statx_t
				require.NoError(t, unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st))
				seen[when+" "+strings.TrimPrefix(name, dir)] = fmt.Sprintf("atime %s mtime %s ctime %s btime %v %s", word(st.Atime.Sec, st.Atime.Nsec), word(st.Mtime.Sec, st.Mtime.Nsec),
					word(st.Ctime.Sec, st.Ctime.Nsec), st.Mask&unix.STATX_BTIME != 0, word(st.Btime.Sec, st.Btime.Nsec))
			}
		}
		removed := map[string]uint64{}
		remember := func(path string) {
			var st unix.Stat_t
			require.NoError(t, unix.Stat(path, &st))
			removed[filepath.Base(path)] = st.Ino
		}
		mounted(t, func(dir string) {
			p := func(name string) string { return filepath.Join(dir, name) }
			require.NoError(t, os.WriteFile(p("made"), []byte("made"), 0o644))
			require.NoError(t, os.Mkdir(p("dir"), 0o755))
			require.NoError(t, os.Symlink("made", p("symlink")))
			require.NoError(t, unix.Mknod(p("fifo"), unix.S_IFIFO|0o600, 0))
			require.NoError(t, os.Link(p("kept"), p("linked")))
			require.NoError(t, os.Rename(p("from"), p("to")))
			require.NoError(t, os.Chmod(p("owned"), 0o600))
			f, err := os.OpenFile(p("appended"), os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.Write([]byte("more"))
			require.NoError(t, err)
			require.NoError(t, f.Sync())
			require.NoError(t, f.Close())
			require.NoError(t, os.Truncate(p("truncated"), 100))
			require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, p("setnow"), []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}, 0))
			for k, at := range oddTimes {
				name := p(fmt.Sprintf("odd%02d", k))
				require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, at}, 0))
			}
			for _, name := range []string{"read", "readagain", "readagain", "odd00", "odd04", "odd10"} {
				_, err := os.ReadFile(p(name))
				require.NoError(t, err)
			}
			_, err = os.ReadDir(p("listed"))
			require.NoError(t, err)
			remember(p("removed"))
			remember(p("rmdir"))
			require.NoError(t, os.Remove(p("removed")))
			require.NoError(t, os.Remove(p("rmdir")))
			f, err = os.Create(p("open"))
			require.NoError(t, err)
			remember(p("open"))
			require.NoError(t, os.Remove(p("open")))
			_, err = f.Write([]byte("open"))
			require.NoError(t, err)
			require.NoError(t, f.Close())
			unix.Sync()
			stats("mounted", dir)
		})
		for name, ino := range removed {
			out := must(t, "debugfs", "-R", fmt.Sprintf("stat <%d>", ino), dev)
			m := dtime.FindStringSubmatch(out)
			require.NotNil(t, m, "%s: %s", name, out)
			lo, err := strconv.ParseUint(m[1], 16, 32)
			require.NoError(t, err)
			sec := int64(lo)
			for sec < at.Unix()-1<<31 { // it has 32 bits
				sec += 1 << 32
			}
			seen["dtime of "+name] = word(sec, 0)
		}
		b := make([]byte, 1024)
		f, err := os.Open(dev)
		require.NoError(t, err)
		defer f.Close()
		_, err = f.ReadAt(b, 1024)
		require.NoError(t, err)
		for name, at := range map[string][2]int{"s_mtime": {0x2C, 0x275}, "s_wtime": {0x30, 0x274}, "s_lastcheck": {0x40, 0x277}, "s_mkfs_time": {0x108, 0x276}} {
			seen[name] = word(int64(binary.LittleEndian.Uint32(b[at[0]:]))|int64(b[at[1]])<<32, 0)
		}
		said, err := run("e2fsck", "-fn", dev)
		seen["e2fsck"] = fmt.Sprint(err == nil, modTime.ReplaceAllString(said, "TIME"))
		out, _ := run("dumpe2fs", "-h", dev)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "state:") || strings.Contains(line, "Mount count") || strings.Contains(line, "features:") {
				seen["dumpe2fs "+line] = ""
			}
		}
		require.NoError(t, unix.Mount(dev, "/mnt", "ext4", unix.MS_RDONLY, ""))
		stats("later", "/mnt")
		require.NoError(t, unix.Unmount("/mnt", 0))
	})
	return seen
}

var (
	dtime   = regexp.MustCompile(`dtime: 0x([0-9a-f]+)`)
	modTime = regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun) .* \d{4}`)
)

// TestClockSteps: the machine's clock is set under a mount, by hours and by decades, back and forward, also in the middle of everything. Commits come in time, fsync and umount return, and nobody complains.
func TestClockSteps(t *testing.T) {
	skipOthers(t, 0)
	dev := disk(t, nvme0)
	mkfs(t, dev)
	dir, log := mountLogged(t, dev)
	now := time.Now()
	wrote := func(name string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pattern(64<<10, name[0]), 0o600))
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Less(t, time.Since(st.ModTime().Round(0)).Abs(), time.Minute, "files have the clock's times")
	}
	type counted struct {
		Mounted time.Time
		Volume  struct{ Commits int64 }
	}
	for name, at := range map[string]time.Time{"hours": now.Add(5 * time.Hour), "back": now.Add(-5 * time.Hour), "years": now.AddDate(30, 0, 0), "nobattery": time.Unix(0, 0).Add(sinceBoot(t) + time.Minute)} {
		t.Run(name, func(t *testing.T) {
			setClock(t, at)
			var before, after counted
			wrote(name)
			lanefsJSON(t, &before, "stat", "--json", dir)
			require.Less(t, time.Since(before.Mounted).Abs(), sinceBoot(t), "as of the clock that is set")
			wrote(name + "2")
			require.Eventually(t, func() bool {
				lanefsJSON(t, &after, "stat", "--json", dir)
				return after.Volume.Commits > before.Volume.Commits
			}, time.Minute, 100*time.Millisecond, "no commit by itself")
			require.Regexp(t, `mounted (\d+m)?\d+s ago`, lanefs(t, "stat", dir))
		})
	}
	done, stepped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stepped)
		began := time.Now()
		by := []time.Duration{3 * time.Hour, 0, -3 * time.Hour, 0, 30 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour}
		for n := 0; ; n++ {
			at := began.Round(0).Add(time.Since(began))
			select {
			case <-done:
				stepTo(t, at)
				return
			case <-time.After(30 * time.Millisecond):
				stepTo(t, at.Add(by[n%len(by)]))
			}
		}
	}()
	t.Run("under", func(t *testing.T) {
		defer func() { close(done); <-stepped }()
		for k := range 40 {
			name := filepath.Join(dir, fmt.Sprint("under", k))
			f, err := os.Create(name)
			require.NoError(t, err)
			_, err = f.Write(pattern(100<<10, byte(k)))
			require.NoError(t, err)
			if k%4 == 0 {
				require.NoError(t, f.Sync())
			}
			require.NoError(t, f.Close())
			if k%5 == 4 {
				require.NoError(t, os.Remove(name))
			}
			if k%10 == 0 {
				lanefs(t, "stat", dir)
			}
		}
		traced := make(chan error, 1)
		go func() { _, err := run("lanefs", "trace", "--for", "1s", dir); traced <- err }()
		for ended := false; !ended; {
			select {
			case err := <-traced:
				require.NoError(t, err)
				ended = true
			case <-time.After(10 * time.Millisecond):
				require.NoError(t, os.WriteFile(filepath.Join(dir, "traced"), nil, 0o600))
			}
		}
		lanefs(t, "umount", dir)
		dir = mount(t, dev)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "last"), pattern(1<<20, 3), 0o600))
		require.NoError(t, unix.Unmount(dir, 0))
		require.Eventually(t, func() bool { _, err := run("e2fsck", "-fn", dev); return err == nil }, time.Minute, 100*time.Millisecond, "the daemon ends")
	})
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Empty(t, complaints(b))
	kernelMount(t, dev, func(dir string) {
		for k := range 40 {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("under", k)))
			if k%5 == 4 {
				require.ErrorIs(t, err, os.ErrNotExist)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, pattern(100<<10, byte(k)), got)
		}
	})
	fsck(t, dev)
}
