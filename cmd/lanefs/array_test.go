package main

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/md/mdtest"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
)

func TestSplitList(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "a,b")
	require.NoError(t, os.WriteFile(odd, nil, 0o600))
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("image", nil, 0o600))
	for arg, want := range map[string][]string{
		"0000:04:00.0":                         {"0000:04:00.0"},
		"0000:04:00.0,05:00.0/2,06:00.0-part1": {"0000:04:00.0", "05:00.0/2", "06:00.0-part1"},
		"/tmp/a,/tmp/missing":                  {"/tmp/a", "/tmp/missing"},
		"image,./image":                        {"image", "./image"},
		odd:                                    {odd}, // a file of that name is that file
		"LABEL=fish, chips":                    {"LABEL=fish, chips"},
		"PARTUUID=1,PARTUUID=2":                {"PARTUUID=1", "PARTUUID=2"},
		"no,such":                              {"no,such"},
		"0000:04:00.0,":                        {"0000:04:00.0,"},
		"0000:04:00.0,05:00.0,p2":              {"0000:04:00.0", "05:00.0", "p2"},
		"p1,0000:04:00.0":                      {"p1,0000:04:00.0"},
		"0000:04:00.0,p0":                      {"0000:04:00.0,p0"},
	} {
		require.Equal(t, want, splitList(arg), arg)
	}
}

// TestArray: an array of three images of different sizes is formatted, mounted, read and written as one, in any order of its members; less than
// all, more, or one alone are refused by name.
func TestArray(t *testing.T) {
	p := newPlace(t)
	a := mdtest.Array{Set: 3, Minor: 2, Chunk: 128, Features: 1 << 12, Layout: 2, Disks: 3}
	var img []string
	for role, mib := range []int64{24, 16, 40} {
		img = append(img, p.path(fmt.Sprint("img", role)))
		f, err := os.Create(img[role])
		require.NoError(t, err)
		require.NoError(t, f.Truncate(mib<<20))
		require.NoError(t, a.Write(f, mib<<20, role))
		require.NoError(t, f.Close())
	}
	other := p.path("other")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	require.NoError(t, os.Truncate(other, 16<<20))
	dir, file := p.mkdir("mnt"), p.path("raw")
	p.dirs = append(p.dirs, file)

	abc, cab := strings.Join(img, ","), img[2]+","+img[0]+","+img[1]
	p.ok("raw", "--gpu", "host", abc, file)
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 80<<20-3*64<<10, st.Size()) // a chunk of each has the metadata
	tool(t, "mkfs.ext4", "-q", "-F", file)
	p.ok("umount", file)

	for want, device := range map[string]string{
		"has 3 members, and number 1, 2 is missing": img[0],
		"and number 2 is missing":                   img[0] + "," + img[1],
		"has no md metadata":                        abc + "," + other,
		"is named twice":                            img[0] + "," + abc,
		"no such file":                              abc + "," + p.path("missing"),
	} {
		require.Contains(t, p.fails("mount", "--gpu", "host", device, dir), want)
	}

	p.ok("mount", "--gpu", "host", abc, dir)
	data := []byte(strings.Repeat("over all three members ", 1<<20))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), data, 0o600))
	r, err := p.stat(dir)
	require.NoError(t, err)
	require.Equal(t, "md raid0 of 3", r.Device.Model)
	require.Len(t, r.Members, 3)
	written := map[int]uint64{}
	for _, q := range r.Queues {
		written[q.Member] += q.BytesWritten
	}
	for m := range 3 {
		require.Greater(t, written[m], uint64(1<<20), "member %d", m)
	}
	require.Contains(t, p.fails("mount", "--gpu", "host", img[1], p.mkdir("half")), fmt.Sprintf("in use by the LaneFS mount of %q at %q", abc, dir))
	second := p.mkdir("second")
	if os.Geteuid() == 0 {
		p.ok("mount", "--gpu", "host", cab, second) // the same array, so one more mount of it
		_, _, err = p.run("umount", second)
		require.NoError(t, err)
	}
	p.ok("umount", dir)

	require.Contains(t, p.ok("check", cab), "mounts it read-write")
	p.ok("mount", "--gpu", "host", "-o", "ro", cab, dir)
	got, err := os.ReadFile(filepath.Join(dir, "file"))
	require.NoError(t, err)
	require.Equal(t, string(data), string(got))
	p.ok("umount", dir)
	p.ok("raw", "--gpu", "host", "-r", cab, file)
	fsck(t, file)
	p.ok("umount", file)

	// One member by itself is shown as it is.
	p.ok("raw", "--gpu", "host", "-r", img[1], file)
	st, err = os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 16<<20, st.Size())
	p.ok("umount", file)
}

// TestArrayFailure: a runtime that failed one member's lanes is taken to have failed when the others are closed.
func TestArrayFailure(t *testing.T) {
	cfg := mountConfig{Config: mountopt.Default()}
	cfg.GPU = "host"
	a := mdtest.Array{Set: 3, Minor: 1, Chunk: 8, Disks: 2}
	for role := range 2 {
		img := filepath.Join(t.TempDir(), "img")
		f, err := os.Create(img)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(8<<20))
		require.NoError(t, a.Write(f, 8<<20, role))
		require.NoError(t, f.Close())
		cfg.Members = append(cfg.Members, where{Device: img})
	}
	s, err := openDevice(&cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	first := s.nvme
	s.others[0].nvme.FailRuntime()
	_ = s.Close()
	require.True(t, first.RuntimeFailed())
}

// TestPartitionOfMember: what looks like a partition of an array's member is one of the array. A half of a mirror, which has the mirror's table and
// volumes, is not mounted by way of it; a partition that is the last of the disk may itself be a member.
func TestPartitionOfMember(t *testing.T) {
	p := newPlace(t)
	const size = 32 << 20
	img, dir, file := p.path("img"), p.mkdir("mnt"), p.path("raw")
	p.dirs = append(p.dirs, file)
	parted := func(second string) *os.File {
		f, err := os.Create(img)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(size))
		partitioned(t, img, "label: dos\nstart=2048, size=32768\nstart=36864, size="+second+"\n")
		tool(t, "mkfs.ext4", "-q", "-F", "-E", "offset=1048576", img, "16M")
		return f
	}
	f := parted("20480") // a mirror has no room for its metadata
	p.ok("mount", "--gpu", "host", img+"-part1", dir)
	p.ok("umount", dir)
	require.NoError(t, mdtest.Array{Set: 5, Level: 1, Disks: 2}.Write(f, size, 0))
	for _, args := range [][]string{{"mount", "--gpu", "host", img + "-part1", dir}, {"check", img + "-part1"}} {
		require.Contains(t, p.fails(args...), `is a member of the md array "lab:test"`)
	}
	p.ok("raw", "--gpu", "host", "-r", img+"-part1", file) // which shows what is there
	p.ok("umount", file)
	require.NoError(t, f.Close())

	// Version 0.90 does not say where it is: it is the last partition's.
	f = parted("28672")
	old := make([]byte, 8)
	binary.LittleEndian.PutUint32(old, 0xa92b4efc)
	_, err := f.WriteAt(old, size-64<<10)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p.ok("mount", "--gpu", "host", img+"-part1", dir)
	p.ok("umount", dir)
	all, err := tagsOf(img)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(all, func(a tagged) bool { return a.Part == 1 && a.tags["UUID"] != "" }))
	require.Contains(t, p.fails("mount", "--gpu", "host", img+"-part2", dir), "md metadata of version 0.90")
	// Behind the last partition it is the disk's.
	partitioned(t, img, "label: dos\nstart=2048, size=32768\nstart=36864, size=20480\n")
	require.Contains(t, p.fails("mount", "--gpu", "host", img+"-part1", dir), "md metadata of version 0.90")
	all, err = tagsOf(img)
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(all, func(a tagged) bool { return a.Part > 0 }), "it has no partitions of its own")
}

// TestForeignMirror: a half of a mirror of a firmware's (Intel's VROC), or of DRBD's, looks like the volume too. Neither is mounted, as by mount(8), to which
// libblkid says what it is.
func TestForeignMirror(t *testing.T) {
	const size = 16 << 20
	drbd := make([]byte, 64)
	binary.BigEndian.PutUint64(drbd, size/512)
	binary.BigEndian.PutUint32(drbd[60:], 0x8374026b)
	for _, c := range []struct {
		kind, want string
		at         int64
		sign       []byte
	}{
		{"isw_raid_member", "Intel's", size - 2*512, []byte("Intel Raid ISM Cfg Sig. 1.3.00")},
		{"drbd", "DRBD's", size - 4096, drbd},
	} {
		t.Run(c.kind, func(t *testing.T) {
			p := newPlace(t)
			img, dir, file := p.path("img"), p.mkdir("mnt"), p.path("raw")
			p.dirs = append(p.dirs, file)
			require.NoError(t, os.WriteFile(img, nil, 0o600))
			require.NoError(t, os.Truncate(img, size))
			tool(t, "mkfs.ext4", "-q", "-F", img, "15M") // a mirror leaves its metadata out
			p.ok("mount", "--gpu", "host", img, dir)
			p.ok("umount", dir)
			f, err := os.OpenFile(img, os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(c.sign, c.at)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.Contains(t, tool(t, "blkid", "-p", img), `TYPE="`+c.kind+`"`)
			require.Contains(t, p.fails("mount", "--gpu", "host", img, dir), c.want)
			require.Contains(t, p.fails("check", img), c.want)
			all, err := tagsOf(img)
			require.NoError(t, err)
			_, ok, err := choose(all, "LABEL", "")
			require.NoError(t, err)
			require.False(t, ok)
			for _, a := range all {
				require.Empty(t, a.tags)
			}
			p.ok("raw", "--gpu", "host", "-r", img, file) // which shows what is there
			p.ok("umount", file)
		})
	}
}

// TestForgedMember: who may write files on a volume may write the last block of the device, and so what looks like metadata at its end. That is data of the
// volume, which is mounted, and not what the metadata leads to; and it keeps nobody from mounting.
func TestForgedMember(t *testing.T) {
	const size, inner = 32 << 20, 20 << 20
	forge := map[string]func(f *os.File){
		"an array of one": func(f *os.File) { // of another volume, in a file
			require.NoError(t, mdtest.Array{Set: 6, Level: -1, Disks: 1, Data: inner / 512}.Write(f, size, 0))
		},
		"a half": func(f *os.File) { require.NoError(t, mdtest.Array{Set: 6, Level: 1, Disks: 2}.Write(f, size, 0)) },
		"0.90": func(f *os.File) {
			_, err := f.WriteAt([]byte{0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0}, size-64<<10)
			require.NoError(t, err)
		},
		"firmware's": func(f *os.File) {
			_, err := f.WriteAt([]byte("Intel Raid ISM Cfg Sig. 1.3.00"), size-2*512)
			require.NoError(t, err)
		},
	}
	for name, write := range forge {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			img, dir := p.path("img"), p.mkdir("mnt")
			require.NoError(t, os.WriteFile(img, nil, 0o600))
			require.NoError(t, os.Truncate(img, size))
			tool(t, "mkfs.ext4", "-q", "-F", "-L", "outer", img)
			other := p.path("other")
			require.NoError(t, os.WriteFile(other, nil, 0o600))
			require.NoError(t, os.Truncate(other, 8<<20))
			tool(t, "mkfs.ext4", "-q", "-F", "-L", "inner", other)
			b, err := os.ReadFile(other)
			require.NoError(t, err)
			f, err := os.OpenFile(img, os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(b, inner)
			require.NoError(t, err)
			write(f)
			require.NoError(t, f.Close())
			p.ok("mount", "--gpu", "host", img, dir)
			r, err := p.stat(dir)
			require.NoError(t, err)
			require.NotContains(t, r.Device.Model, "md ")
			p.ok("umount", dir)
			all, err := tagsOf(img)
			require.NoError(t, err)
			arrays, why := arraysOf(all)
			require.Empty(t, why)
			require.Empty(t, arrays)
			_, ok, err := choose(all, "LABEL", "outer")
			require.NoError(t, err)
			require.True(t, ok)
		})
	}
}
