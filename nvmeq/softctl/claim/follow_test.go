package claim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tree is a sysfs with block devices, each a line: "sda 8:0 size=100", "sda1 8:1 of=sda start=10 size=20",
// "dm-0 253:0 dm slaves=sda1 size=20", "md0 9:0 slaves=sda,sdb size=90", "loop0 7:0 loop size=5". Sizes are sectors.
func tree(t *testing.T, lines string) system {
	t.Helper()
	root := t.TempDir()
	put := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/block"), 0o755))
	dirs := map[string]string{}
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		dir := filepath.Join(root, "block", f[0])
		is := map[string]string{}
		for _, o := range f[2:] {
			k, v, _ := strings.Cut(o, "=")
			is[k] = v
		}
		if of := is["of"]; of != "" {
			dir = filepath.Join(dirs[of], f[0])
			put(filepath.Join(dir, "partition"), "1")
			put(filepath.Join(dir, "start"), is["start"])
		}
		dirs[f[0]] = dir
		put(filepath.Join(dir, "dev"), f[1])
		put(filepath.Join(dir, "size"), is["size"])
		for _, kind := range []string{"dm", "loop"} {
			if _, ok := is[kind]; ok {
				require.NoError(t, os.Mkdir(filepath.Join(dir, kind), 0o755))
			}
		}
		require.NoError(t, os.Mkdir(filepath.Join(dir, "slaves"), 0o755))
		for _, s := range strings.Split(is["slaves"], ",") {
			if s != "" {
				require.NoError(t, os.Symlink(dirs[s], filepath.Join(dir, "slaves", s)))
			}
		}
		require.NoError(t, os.Symlink(dir, filepath.Join(root, "dev/block", f[1])))
	}
	return system{
		sys:   root,
		loop:  func(name string, _ uint64) (loop, error) { return loop{}, errors.New(name) },
		table: func(uint64) ([]target, error) { return nil, errors.New("no device mapper") },
	}
}

// show is a way in short: "8:0[5120,15360)" for each extent.
func show(w *way) string {
	var all []string
	for _, e := range w.extents {
		end := fmt.Sprint(e.End)
		if e.End == toEnd {
			end = "end"
		}
		on := number(e.On.Dev)
		if !e.On.Block {
			on = fmt.Sprintf("%s/%d", on, e.On.Ino)
		}
		all = append(all, fmt.Sprintf("%s[%d,%s)", on, e.Off, end))
	}
	return strings.Join(all, " ")
}

func TestFollow(t *testing.T) {
	s := tree(t, `
		sda 8:0 size=100
		sda1 8:1 of=sda start=10 size=20
		sda2 8:2 of=sda start=30 size=60
		sdb 8:16 size=100
		cciss!c0d0 104:0 size=10
		dm-0 253:0 dm slaves=sda1 size=20
		dm-1 253:1 dm slaves=sda2,sdb size=50
		dm-2 253:2 dm slaves=sda2 size=30
		dm-3 253:3 dm slaves=dm-2 size=10
		md0 9:0 slaves=sda1,sdb size=20
		loop0 7:0 loop size=8
		loop1 7:1 loop size=4
		loop2 7:2 loop size=4
		loop2p1 259:0 of=loop2 start=1 size=2`)
	s.loop = func(name string, dev uint64) (loop, error) {
		switch name {
		case "loop0":
			return loop{dev: 99, ino: 7}, nil
		case "loop1":
			return loop{block: true, rdev: unix.Mkdev(7, 0), off: 512, size: 1024}, nil
		case "loop2":
			return loop{block: true, rdev: unix.Mkdev(8, 1), off: 1024}, nil
		}
		return loop{}, errors.New(name)
	}
	s.table = func(dev uint64) ([]target, error) {
		switch unix.Minor(dev) {
		case 1:
			return []target{
				{0, 20 * 512, "linear", "8:2 4"}, {20 * 512, 10 * 512, "error", ""}, {30 * 512, 20 * 512, "crypt", "aes 00 0 8:16 7 1 x"},
			}, nil
		case 2:
			return []target{{0, 30 * 512, "linear", "8:2 20"}}, nil
		case 3:
			return []target{{0, 10 * 512, "snapshot", "x"}}, nil
		}
		return nil, errors.New("not root")
	}
	for _, c := range []struct {
		major, minor uint32
		want         string
		devices      string
	}{
		{8, 0, "8:0[0,51200)", "sda!"},
		{8, 1, "8:0[5120,15360)", "sda1! sda"},
		{104, 0, "104:0[0,5120)", "cciss/c0d0!"},
		{253, 0, "8:0[5120,15360)", "dm-0! sda1 sda"},
		{253, 1, "8:0[17408,27648) 8:16[3584,13824)", "dm-1! sda2 sda sdb"},
		{253, 2, "8:0[25600,40960)", "dm-2! sda2 sda"},
		{253, 3, "8:0[25600,40960)", "dm-3! dm-2 sda2 sda"},
		{9, 0, "8:0[5120,15360) 8:16[0,51200)", "md0! sda1 sda sdb"},
		{7, 0, "0:99/7[0,end)", "loop0!"},
		{7, 1, "0:99/7[512,1536)", "loop1! loop0!"},
		{259, 0, "8:0[6656,7680)", "loop2p1! loop2 sda1! sda"},
	} {
		w, err := s.follow(unix.Mkdev(c.major, c.minor))
		require.NoError(t, err)
		require.Equal(t, c.want, show(w), c.devices)
		var names []string
		for _, d := range w.devices {
			n := d.name
			if d.alone {
				n += "!"
			}
			names = append(names, n)
		}
		require.Equal(t, c.devices, strings.Join(names, " "))
		require.Equal(t, c.major == 253, w.mapped)
	}
	_, err := s.follow(unix.Mkdev(1, 1))
	require.Error(t, err)
}

// TestOverlapOfMapped: two volumes of the device mapper beside one another are two, and where their tables cannot be read,
// are taken for one.
func TestOverlapOfMapped(t *testing.T) {
	s := tree(t, `
		sda 8:0 size=100
		dm-0 253:0 dm slaves=sda size=20
		dm-1 253:1 dm slaves=sda size=20
		dm-2 253:2 dm slaves=sda size=20`)
	at := map[uint32]string{0: "8:0 0", 1: "8:0 20", 2: "8:0 10"}
	meet := func(a, b uint32) bool {
		x, err := s.follow(unix.Mkdev(253, a))
		require.NoError(t, err)
		y, err := s.follow(unix.Mkdev(253, b))
		require.NoError(t, err)
		return overlap(x.extents, y.extents)
	}
	require.True(t, meet(0, 1))
	s.table = func(dev uint64) ([]target, error) { return []target{{0, 20 * 512, "linear", at[unix.Minor(dev)]}}, nil }
	require.False(t, meet(0, 1))
	require.True(t, meet(0, 2))
	require.True(t, meet(1, 2))
}

// TestCircle: what cannot be comes to an end.
func TestCircle(t *testing.T) {
	s := tree(t, "loop0 7:0 loop size=8")
	s.loop = func(string, uint64) (loop, error) { return loop{block: true, rdev: unix.Mkdev(7, 0)}, nil }
	_, err := s.follow(unix.Mkdev(7, 0))
	require.ErrorContains(t, err, "stand on one another")
}

func TestParseTable(t *testing.T) {
	le := binary.NativeEndian
	b := make([]byte, mapperBuffer)
	le.PutUint32(b[16:], mapperHead)
	le.PutUint32(b[20:], 2)
	put := func(at int, start, length uint64, next uint32, kind, params string) {
		d := b[mapperHead+at:]
		le.PutUint64(d, start)
		le.PutUint64(d[8:], length)
		le.PutUint32(d[20:], next)
		copy(d[24:40], kind)
		copy(d[40:], params+"\x00")
	}
	put(0, 0, 8, 64, "linear", "8:0 16")
	put(64, 8, 4, 128, "zero", "")
	all, err := parseTable(b)
	require.NoError(t, err)
	require.Equal(t, []target{{0, 4096, "linear", "8:0 16"}, {4096, 2048, "zero", ""}}, all)
	put(64, 8, 4, 128, "zero", "")
	le.PutUint32(b[20:], 3)
	le.PutUint32(b[mapperHead+64+20:], mapperBuffer)
	_, err = parseTable(b)
	require.ErrorIs(t, err, errTable)
	le.PutUint32(b[28:], flagFull)
	_, err = parseTable(b)
	require.ErrorIs(t, err, errTable)
	require.EqualValues(t, 3<<30|mapperHead<<16|0xfd<<8|12, tableStatus)
}

func TestConflicts(t *testing.T) {
	e := extent{On: bottom{Dev: unix.Mkdev(0xfe, 1), Ino: 42}, Off: 4096, End: 8192}
	for line, want := range map[string][2]bool{ // for a reader, for a writer
		"1: OFDLCK ADVISORY  WRITE -1 fe:01:42 0 EOF":     {true, true},
		"1: OFDLCK ADVISORY  READ -1 fe:01:42 0 EOF":      {false, true},
		"1: POSIX  ADVISORY  WRITE 77 fe:01:42 8191 8191": {true, true},
		"1: OFDLCK ADVISORY  WRITE -1 fe:01:42 8192 EOF":  {},
		"1: OFDLCK ADVISORY  WRITE -1 fe:01:42 0 4095":    {},
		"1: OFDLCK ADVISORY  WRITE -1 fe:01:43 0 EOF":     {},
		"1: OFDLCK ADVISORY  WRITE -1 fe:02:42 0 EOF":     {},
		"1: FLOCK  ADVISORY  WRITE 77 fe:01:42 0 EOF":     {},
		"": {},
	} {
		require.Equal(t, want[0], conflicts(line, e, false), line)
		require.Equal(t, want[1], conflicts(line, e, true), line)
	}
}
