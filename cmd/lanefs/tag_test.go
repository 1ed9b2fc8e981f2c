package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/md/mdtest"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

const (
	tagUUID  = "0f0e0d0c-0b0a-4908-8706-050403020100"
	tagLabel = "my disk/1"
)

// volumes is a machine whose block devices are files: an ext4 volume each, by name.
func volumes(t *testing.T, names ...string) machine {
	m := machine{t.TempDir()}
	for _, name := range names {
		require.NoError(t, os.MkdirAll(m.path("sys/class/block", name, "holders"), 0o755))
		require.NoError(t, os.MkdirAll(m.path("dev"), 0o755))
		node := m.path("dev", name)
		require.NoError(t, os.WriteFile(node, nil, 0o600))
		require.NoError(t, os.Truncate(node, 8<<20))
		tool(t, "mkfs.ext4", "-q", "-F", "-L", tagLabel, "-U", tagUUID, node, "7M") // an array's metadata have room behind it
	}
	return m
}

// TestTags: a device is found by what is on it, by udev's links or else by reading; two that answer are refused by name.
func TestTags(t *testing.T) {
	for device, want := range map[string]string{"LABEL=a b": "LABEL a b", `UUID="1"`: "UUID 1", "PARTUUID='x'": "PARTUUID x", `LABEL="`: `LABEL "`,
		"label=x": "", "/dev/sda": "", "LABEL": "", "A=B": ""} {
		name, value, ok := parseTag(device)
		require.Equal(t, want != "", ok, device)
		if ok {
			require.Equal(t, want, name+" "+value)
		}
	}
	require.Equal(t, `my\x20disk\x2f1é\x5cx\xff`, encodeTag("my disk/1é\\x\xff"))

	m := volumes(t, "sda", "sdb1")
	require.NoError(t, os.MkdirAll(m.path("sys/class/block/sda/holders/md0"), 0o755))
	require.NoError(t, os.MkdirAll(m.path("sys/class/block/sr0"), 0o755)) // no node
	for _, tag := range [][2]string{{"LABEL", tagLabel}, {"UUID", tagUUID}, {"UUID", "0F0E0D0C-0B0A-4908-8706-050403020100"}} {
		got, err := m.find(tag[0], tag[1])
		require.NoError(t, err)
		require.Equal(t, where{Device: m.path("dev/sdb1")}, got, "sda is a half of md0")
	}
	_, err := m.find("LABEL", "my disk")
	require.ErrorContains(t, err, "no device has LABEL=my disk")
	_, err = m.find("LABEL", "")
	require.ErrorContains(t, err, "LABEL= names no device")
	_, err = m.find("PARTUUID", "1-1")
	require.ErrorContains(t, err, "no device has PARTUUID=1-1")
	_, err = m.find("ID", "nvme-x")
	require.ErrorContains(t, err, "no device has ID=nvme-x: no such file")
	require.NoError(t, os.MkdirAll(m.path("sys/class/block/sdb1/dm"), 0o755))
	require.NoError(t, os.WriteFile(m.path("sys/class/block/sdb1/dm/suspended"), []byte("1\n"), 0o600))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, "no device that could be read has UUID="+tagUUID+": "+m.path("dev/sdb1")+": the device mapper has suspended it", "a read would wait")
	for i := range 10 {
		require.NoError(t, os.MkdirAll(m.path(fmt.Sprintf("sys/class/block/dm-%d/dm", i)), 0o755))
		require.NoError(t, os.WriteFile(m.path(fmt.Sprintf("sys/class/block/dm-%d/dm/suspended", i)), []byte("1\n"), 0o600))
	}
	_, err = m.find("UUID", tagUUID)
	for i := range 8 {
		require.ErrorContains(t, err, fmt.Sprintf("%s: the device mapper has suspended it; ", m.path("dev", fmt.Sprint("dm-", i))))
	}
	require.ErrorContains(t, err, "; and 3 more; blkid")
	for i := range 10 {
		require.NoError(t, os.RemoveAll(m.path(fmt.Sprint("sys/class/block/dm-", i))))
	}
	require.NoError(t, os.Remove(m.path("sys/class/block/sdb1/dm/suspended")))
	require.NoError(t, os.WriteFile(m.path("sys/class/block/sdb1/dm/name"), []byte("vg-lv\n"), 0o600))
	require.NoError(t, os.MkdirAll(m.path("dev/mapper"), 0o755))
	for _, to := range []string{"", "../sdb1"} {
		if to != "" {
			require.NoError(t, os.Symlink(to, m.path("dev/mapper/vg-lv")))
		}
		w, err := m.find("UUID", tagUUID)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"": m.path("dev/sdb1"), "../sdb1": m.path("dev/mapper/vg-lv")}[to], w.Device, "a device of the device mapper has its name there")
	}
	require.NoError(t, os.RemoveAll(m.path("sys/class/block/sdb1/dm")))
	require.NoError(t, os.WriteFile(m.path("sys/class/block/sdb1/dev"), []byte("8:17\n"), 0o600))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, "no device has UUID=", "what has the name is no such device")
	require.NoError(t, os.Remove(m.path("sys/class/block/sdb1/dev")))
	half, err := os.OpenFile(m.path("dev/sdb1"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, mdtest.Array{Set: 1, Level: 1, Disks: 2}.Write(half, 8<<20, 0))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, "no device has UUID=", "a half of an array that nobody has assembled")
	_, err = half.WriteAt(make([]byte, 64<<10), 8<<20-64<<10)
	require.NoError(t, err)
	require.NoError(t, half.Close())
	require.NoError(t, os.Remove(m.path("sys/class/block/sda/holders/md0")))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, fmt.Sprintf("is on %s and %s", m.path("dev/sda"), m.path("dev/sdb1")))

	// With udev its link counts, and devices are read only where there is none.
	for dir, name := range map[string]string{"by-label": `my\x20disk\x2f1`, "by-partuuid": "1-1"} {
		require.NoError(t, os.MkdirAll(m.path("dev/disk", dir), 0o755))
		require.NoError(t, os.Symlink("../../sda", filepath.Join(m.path("dev/disk", dir), name)))
	}
	for _, tag := range [][2]string{{"LABEL", tagLabel}, {"PARTUUID", "1-1"}} {
		got, err := m.find(tag[0], tag[1])
		require.NoError(t, err)
		require.Equal(t, where{Device: m.path("dev/sda")}, got)
	}
	require.NoError(t, os.MkdirAll(m.path("sys/class/block/sda/dm"), 0o755))
	require.NoError(t, os.WriteFile(m.path("sys/class/block/sda/dm/name"), []byte("vg-other\n"), 0o600))
	require.NoError(t, os.Symlink("../sda", m.path("dev/mapper/vg-other")))
	mapped, err := m.find("LABEL", tagLabel)
	require.NoError(t, err)
	require.Equal(t, where{Device: m.path("dev/mapper/vg-other")}, mapped)
	require.NoError(t, os.RemoveAll(m.path("sys/class/block/sda/dm")))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, "say which by its name")

	_, err = new(mountConfig).resolve("UUID=00000000-0000-0000-0000-000000000000")
	require.ErrorContains(t, err, "UUID=00000000-0000-0000-0000-000000000000")
}

// TestTagsOnBlockDevices: without udev the tables and superblocks of block devices say what they have, of partitions that the kernel shows and of those that
// it does not. All is made by programs of others, and each tag is the one that blkid reads. make test takes each table in one of the two ways.
func TestTagsOnBlockDevices(t *testing.T) {
	disks := map[string]struct {
		table, part string // the second has the volume
		options     []string
	}{
		"gpt":     {"label: gpt\nsize=8M\nsize=40M, name=\"a part, 1\"\n", "2", nil},
		"4096":    {"label: gpt\nsize=8M\nsize=40M, name=\"a part, 1\"\n", "2", []string{"-b", "4096"}},
		"dos":     {"label: dos\nlabel-id: 0x1234abcd\nsize=8M\nsize=40M\n", "2", nil},
		"logical": {"label: dos\nlabel-id: 0x1234abcd\nsize=8M\nsize=60M, type=5\nsize=4M\n\n\n5: size=8M\n6: size=40M\n", "6", nil},
	}
	for k, name := range slices.Sorted(maps.Keys(disks)) {
		for n, shown := range []bool{false, true} {
			c := disks[name]
			if !disktest.Turn(k+n, 2) {
				continue
			}
			t.Run(fmt.Sprintf("%s shown %v", name, shown), func(t *testing.T) {
				p := newPlace(t)
				img := p.path("disk")
				require.NoError(t, os.WriteFile(img, nil, 0o600))
				require.NoError(t, os.Truncate(img, 96<<20))
				dev := loopOver(t, img, append(c.options, "-P")...)
				run := exec.Command("sfdisk", "-q", "--no-reread", "--no-tell-kernel", dev)
				run.Stdin = strings.NewReader(c.table)
				out, err := run.CombinedOutput()
				require.NoError(t, err, "%s", out)
				part := dev + "p" + c.part
				number, err := strconv.Atoi(c.part)
				require.NoError(t, err)
				hide := showParts(t, dev, part)
				label, uuid := fmt.Sprintf("of %d", os.Getpid()), randomUUID(t)
				tool(t, "mkfs.ext4", "-q", "-F", "-L", label, "-U", uuid, part)
				tags := map[string]string{"LABEL": label, "UUID": strings.ToUpper(uuid)}
				for line := range strings.Lines(tool(t, "blkid", "-p", "-o", "export", part)) {
					switch k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k {
					case "PART_ENTRY_UUID":
						tags["PARTUUID"] = v
					case "PART_ENTRY_NAME":
						tags["PARTLABEL"] = strings.NewReplacer("\\", "").Replace(v)
					}
				}
				require.NotEmpty(t, tags["PARTUUID"])
				want := where{Device: part}
				if !shown {
					hide()
					want = where{Device: dev, Part: number}
				}
				for tag, value := range tags {
					if tag == "PARTLABEL" || tag == "PARTUUID" && name != "gpt" && name != "4096" {
						continue // another device of this machine may have it
					}
					got, err := machine{}.find(tag, value)
					require.NoError(t, err, tag)
					require.Equal(t, want, got, tag)
				}
				there, err := machine{}.tagsOfBlock(filepath.Base(dev))
				require.NoError(t, err)
				got, ok, err := choose(there, "PARTUUID", tags["PARTUUID"])
				require.NoError(t, err)
				require.True(t, ok && got == want, "%v %v", got, ok)
				if v := tags["PARTLABEL"]; v != "" {
					got, ok, err := choose(there, "PARTLABEL", v)
					require.NoError(t, err)
					require.True(t, ok && got == want, "%v %v", got, ok)
				}

				dir := p.mkdir("mnt")
				p.ok("mount", "--gpu", "host", "UUID="+uuid, dir)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("in it"), 0o600))
				p.ok("umount", dir)
				p.ok("mount", "--gpu", "host", fmt.Sprintf("%s-part%d", dev, number), dir)
				said := p.fails("mount", "--gpu", "host", dev+"-part1", p.mkdir("other"))
				if shown {
					require.NotContains(t, said, "in use", "the kernel keeps two partitions apart; there is no volume on this one")
				} else {
					require.Contains(t, said, "another part of it is mounted")
				}
				require.Contains(t, p.fails("mount", "--gpu", "host", dev, p.mkdir("whole")), "in use")
				p.ok("umount", dir)
				showParts(t, dev, part)
				fsck(t, part)
				require.Contains(t, tool(t, "debugfs", "-R", "cat file", part), "in it")
			})
		}
	}
}

func randomUUID(t *testing.T) string {
	b, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

// TestStaleTable: a partition that the kernel has elsewhere than the disk's table is neither's.
func TestStaleTable(t *testing.T) {
	p := newPlace(t)
	img := p.path("disk")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, 32<<20))
	dev := loopOver(t, img, "-P")
	for i, start := range []string{"2048", "4096"} {
		run := exec.Command("sfdisk", "-q", "--no-reread", "--no-tell-kernel", dev)
		run.Stdin = strings.NewReader("label: gpt\nstart=" + start + ", size=8192, name=\"one\"\n")
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s", out)
		if i == 0 {
			showParts(t, dev, dev+"p1")
		}
		all, err := machine{}.tagsOfBlock(filepath.Base(dev))
		require.NoError(t, err)
		w, ok, err := choose(all, "PARTLABEL", "one")
		require.NoError(t, err)
		require.Equal(t, i == 0, ok, "%v", w)
	}
}

// TestTagsOnDisk: the tags of partitions and volumes of a disk that the kernel does not see, here an image; a half of a mirror has none.
func TestTagsOnDisk(t *testing.T) {
	dir := t.TempDir()
	img := filepath.Join(dir, "disk")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, 40<<20))
	needsSfdisk(t)
	partitioned(t, img, "label: gpt\nstart=2048, size=16384, name=\"first one\"\nstart=20480, size=16384, uuid=6F1B2C3D-0002-4002-8003-0123456789AB\n"+
		"start=40960, size=16384, uuid=6F1B2C3D-0003-4002-8003-0123456789AB\n")
	put := func(at int64) {
		vol := filepath.Join(dir, "vol")
		require.NoError(t, os.WriteFile(vol, nil, 0o600))
		require.NoError(t, os.Truncate(vol, 8<<20))
		tool(t, "mkfs.ext4", "-q", "-F", "-L", tagLabel, "-U", tagUUID, vol, "7M") // an array's metadata have room behind it
		b, err := os.ReadFile(vol)
		require.NoError(t, err)
		f, err := os.OpenFile(img, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		_, err = f.WriteAt(b, at)
		require.NoError(t, err)
	}
	put(20480 * 512)
	all, err := tagsOf(img)
	require.NoError(t, err)
	require.Len(t, all, 4, "the disk, and its partitions")
	for tag, part := range map[[2]string]int{{"PARTLABEL", "first one"}: 1, {"PARTUUID", "6F1B2C3D-0002-4002-8003-0123456789AB"}: 2, {"LABEL", tagLabel}: 2,
		{"UUID", strings.ToUpper(tagUUID)}: 2, {"PARTUUID", "6f1b2c3d-0003-4002-8003-0123456789ab"}: 3, {"UUID", "0-0"}: 0} {
		w, ok, err := choose(all, tag[0], tag[1])
		require.NoError(t, err)
		require.Equal(t, part > 0, ok, tag)
		require.Equal(t, part, w.Part, tag)
	}
	for _, id := range all[0].ids {
		for name, part := range map[string]int{id: 0, id + "-part3": 3} {
			w, ok, err := choose(all, "ID", name)
			require.NoError(t, err)
			require.True(t, ok && w == where{Device: img, Part: part}, "%s: %v", name, w)
		}
	}
	put(40960 * 512)
	all, err = tagsOf(img)
	require.NoError(t, err)
	_, _, err = choose(all, "LABEL", tagLabel)
	require.ErrorContains(t, err, fmt.Sprintf("LABEL=%s is on %s-part2 and %s-part3", tagLabel, img, img))
	f, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, mdtest.Array{Set: 1, Level: 1, Disks: 2}.Write(at{f, 40960 * 512}, 8<<20, 0))
	require.NoError(t, f.Close())
	all, err = tagsOf(img)
	require.NoError(t, err)
	w, ok, err := choose(all, "LABEL", tagLabel)
	require.NoError(t, err)
	require.True(t, ok && w.Part == 2, "part 3 is a half of a mirror")
	_, err = tagsOf(filepath.Join(dir, "missing"))
	require.Error(t, err)

	// udev's links of what the kernel does not have any more say where it is.
	for arg, want := range map[string]string{
		"/dev/disk/by-uuid/" + tagUUID:                              "UUID=" + tagUUID,
		"/dev/disk/by-label/" + encodeTag("my disk/1é\\x\xff"):      "LABEL=my disk/1é\\x\xff",
		"/dev/disk/by-partlabel/a,b":                                "PARTLABEL=a,b",
		"/dev/disk/by-label/odd\\x2":                                "LABEL=odd\\x2",
		"/dev/disk/by-path/pci-0000:04:00.0-nvme-1":                 "0000:04:00.0/1",
		"/dev/disk/by-path/pci-0000:04:00.0-nvme-12-part3":          "0000:04:00.0/12-part3",
		"/dev/disk/by-path/pci-0000:04:00.0-ata-1":                  "/dev/disk/by-path/pci-0000:04:00.0-ata-1",
		"/dev/disk/by-id/nvme-eui.00000000000000000000000000000001": "ID=nvme-eui.00000000000000000000000000000001",
		"image": "image",
	} {
		require.Equal(t, want, unlink(arg), arg)
	}
}

// at writes at an offset.
type at struct {
	f   *os.File
	off int64
}

func (a at) WriteAt(b []byte, off int64) (int, error) { return a.f.WriteAt(b, a.off+off) }
