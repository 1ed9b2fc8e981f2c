package vm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
)

// personality skips a test where the kernel's md lacks a level.
func personality(t *testing.T, level string) {
	t.Helper()
	b, err := os.ReadFile("/proc/mdstat")
	if err != nil || !strings.Contains(string(b), "["+level+"]") {
		t.Skipf("SKIPPED: the guest's kernel has no %s arrays: %s", level, b)
	}
	if _, err := exec.LookPath("mdadm"); err != nil {
		t.Skip("SKIPPED: no mdadm in the guest")
	}
	t.Setenv("MDADM_NO_UDEV", "1")
}

// dropCaches has the kernel forget what it has in memory of a block device.
func dropCaches(t *testing.T, dev string) {
	t.Helper()
	f, err := os.Open(dev)
	require.NoError(t, err)
	defer f.Close()
	const blkflsbuf = 0x1261
	require.NoError(t, unix.IoctlSetInt(int(f.Fd()), blkflsbuf, 0))
}

// TestArrayOfKernel has the kernel make arrays, over loop devices, and writes on each side what the other must read at the same place. What it
// logs as GOLDEN, with LANEFS_LAB_RUN=TestArrayOfKernel, is blockdev/md/testdata/kernel.txt.
func TestArrayOfKernel(t *testing.T) {
	const page = 4096
	for _, c := range []struct {
		name, level string
		args        []string
		kib         []int64
	}{
		{"1.0", "raid0", []string{"--metadata=1.0", "--chunk=16"}, []int64{1024, 1024}},
		{"1.1, unlike", "raid0", []string{"--metadata=1.1", "--chunk=64"}, []int64{5120, 3000}},
		// The layouts differ where the chunks before a zone are no multiple of its members.
		{"1.2, alternate", "raid0", []string{"--metadata=1.2", "--chunk=64", "--layout=alternate"}, []int64{4160, 7000, 9001, 8000, 4160}},
		{"1.2, original", "raid0", []string{"--metadata=1.2", "--chunk=64", "--layout=original"}, []int64{4160, 7000, 9001, 8000, 4160}},
		{"1.2, chunks of 96 KiB", "raid0", []string{"--metadata=1.2", "--chunk=96", "--layout=original"}, []int64{4200, 7000, 9001}},
		{"linear", "linear", []string{"--metadata=1.2"}, []int64{4160, 3001, 5000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			personality(t, c.level)
			if c.level != "linear" { // which Debian's kernel lacks
				skipOthers(t, 1)
			}
			dir := t.TempDir()
			var files, loops []string
			for i, n := range c.kib {
				f := filepath.Join(dir, fmt.Sprint("member", i))
				require.NoError(t, os.WriteFile(f, nil, 0o600))
				require.NoError(t, os.Truncate(f, n<<10))
				loop := strings.TrimSpace(must(t, "losetup", "-f"))
				must(t, "losetup", loop, f)
				t.Cleanup(func() { must(t, "losetup", "-d", loop) })
				files, loops = append(files, f), append(loops, loop)
			}
			const dev = "/dev/md8"
			args := append([]string{"--create", dev, "--run", "--force", "--level=" + c.level, fmt.Sprint("--raid-devices=", len(loops))}, c.args...)
			must(t, "mdadm", append(args, loops...)...)
			stopped := false
			t.Cleanup(func() {
				if !stopped {
					run("mdadm", "--stop", dev)
				}
			})
			kernel, err := os.OpenFile(dev, os.O_RDWR, 0)
			require.NoError(t, err)
			size, err := kernel.Seek(0, 2)
			require.NoError(t, err)
			want := make([]byte, size)
			for i := int64(0); i < size; i += page {
				binary.LittleEndian.PutUint64(want[i:], uint64(i/page)|1<<40)
			}
			_, err = kernel.WriteAt(want, 0)
			require.NoError(t, err)
			require.NoError(t, kernel.Sync())
			require.NoError(t, kernel.Close())
			must(t, "mdadm", "--stop", dev)
			stopped = true
			for _, l := range loops {
				dropCaches(t, l)
			}
			if line, _ := os.ReadFile("/proc/cmdline"); strings.Contains(string(line), "lab.run=TestArrayOfKernel ") {
				golden(t, c.name+" "+c.level, files, c.kib)
			}

			// LaneFS reads what the kernel wrote, and writes.
			var members []md.Member
			for i := range files {
				d, err := blockdev.OpenFile(files[len(files)-1-i], 512)
				require.NoError(t, err)
				defer d.Close()
				members = append(members, md.Member{Name: files[len(files)-1-i], Dev: d})
			}
			d, err := md.Open(members)
			require.NoError(t, err)
			require.EqualValues(t, size, d.Info().Size())
			b, err := d.Alloc(int(size))
			require.NoError(t, err)
			defer b.Release()
			require.NoError(t, d.Read(0, b.Slice(0, int(size))))
			require.True(t, bytes.Equal(want, b.Bytes()[:size]))
			rng := rand.New(rand.NewPCG(1, 1))
			for range 100 {
				off := rng.Int64N(size/512) * 512
				n := min(size-off, (1+rng.Int64N(600))*512)
				if rng.IntN(4) == 0 {
					require.NoError(t, d.WriteZeroes(blockdev.Bytes(off), blockdev.Bytes(n)))
					clear(want[off : off+n])
					continue
				}
				for i := range n {
					want[off+i] = byte(rng.Uint32())
				}
				copy(b.Bytes(), want[off:off+n])
				require.NoError(t, d.Write(blockdev.Bytes(off), false, b.Slice(0, int(n))))
			}
			require.NoError(t, d.Close())

			// The kernel reads that.
			for _, l := range loops {
				dropCaches(t, l)
			}
			must(t, "mdadm", append([]string{"--assemble", dev, "--run"}, loops...)...)
			stopped = false
			got, err := os.ReadFile(dev)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}
}

// golden logs the members' superblocks, and where on them the blocks of the array are that the kernel has numbered.
func golden(t *testing.T, name string, files []string, kib []int64) {
	t.Logf("GOLDEN array %s", strings.ReplaceAll(name, " ", "_"))
	for m, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		at := -1
		for _, k := range []int{0, 4096, (len(b)/512 - 16) &^ 7 * 512} {
			if binary.LittleEndian.Uint32(b[k:]) == 0xa92b4efc {
				at = k
			}
		}
		require.GreaterOrEqual(t, at, 0)
		super := b[at:][:256+2*binary.LittleEndian.Uint32(b[at+0xdc:])]
		t.Logf("GOLDEN member %d %d %s", kib[m], at, hex.EncodeToString(super))
		clear(b[at : at+4096])
		var list strings.Builder
		first, from, n := int64(-1), int64(-1), int64(0)
		flush := func() {
			if n > 0 {
				fmt.Fprintf(&list, " %d:%d:%d", from, first, n)
			}
			n = 0
		}
		for i := int64(0); i+512 <= int64(len(b)); i += 512 {
			v := binary.LittleEndian.Uint64(b[i:])
			if v>>40 != 1 {
				continue
			}
			v &= 1<<40 - 1
			if n > 0 && int64(v) == first+n && i == from+n*4096 {
				n++
				continue
			}
			flush()
			first, from, n = int64(v), i, 1
		}
		flush()
		t.Logf("GOLDEN blocks%s", list.String())
	}
}

// TestArrayOfFunctions: the kernel's md makes an array of namespaces of different controllers, and ext4 on it; LaneFS mounts the functions, by their addresses
// and by what is on the array, reads and writes; the kernel reads that. Members of a linear array follow one another, and of a raid0 whose members are unlike
// those that are longer go on by themselves, in one of two layouts, which differ where a zone begins at a chunk that is no multiple of its members.
func TestArrayOfFunctions(t *testing.T) {
	for k, c := range []struct {
		name, level string
		args        []string
		unlike      bool
	}{
		{"raid0", "raid0", []string{"--metadata=1.2", "--chunk=64"}, false},
		{"linear", "linear", []string{"--metadata=1.0"}, true},
		{"unlike alternate", "raid0", []string{"--metadata=1.2", "--chunk=64", "--layout=alternate"}, true},
		{"unlike original", "raid0", []string{"--metadata=1.2", "--chunk=64", "--layout=original"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			personality(t, c.level)
			if k > 1 {
				skipOthers(t, k)
			}
			addrs := []string{nvme0, many}
			if c.unlike {
				small := map[string]any{"driver": "raw", "size": 32<<20 + 64<<10}
				addrs = append([]string{plug(t, medium(t, 7, small), nil)}, addrs...)
			}
			arrayOfFunctions(t, addrs, c.level, c.args, k == 0)
		})
	}
}

// arrayOfFunctions: with all tags, of which each has the functions asked, all of them are tried.
func arrayOfFunctions(t *testing.T, addrs []string, level string, args []string, allTags bool) {
	const (
		md9  = "/dev/md9"
		uuid = "0f0e0d0c-0b0a-4908-8706-050403020111"
	)
	disks := func() (all []string) {
		for _, a := range addrs {
			all = append(all, disk(t, a))
		}
		return all
	}
	args = append([]string{"--create", md9, "--run", "--force", "--homehost=lab", "--name=fast", "--level=" + level, fmt.Sprint("--raid-devices=", len(addrs))}, args...)
	must(t, "mdadm", append(args, disks()...)...)
	t.Cleanup(func() {
		run("mdadm", "--stop", md9)
		for _, d := range disks() {
			must(t, "mdadm", "--zero-superblock", d)
		}
	})
	size := strings.TrimSpace(must(t, "blockdev", "--getsize64", md9))
	mkfs(t, md9, "-L", "lab array", "-U", uuid)
	var before, after map[string]string
	kernelMount(t, md9, func(dir string) {
		fill(t, dir, 1)
		before = tree(t, dir)
	})
	require.Contains(t, refused(t, "bind", nvme0), "is part of the RAID array md9")
	must(t, "mdadm", "--stop", md9)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		missing := fmt.Sprintf(`fast" \(.*\) has %d members, and number .* is missing`, len(addrs))
		require.Regexp(t, `no device has LABEL=lab array.* no array is made of `+nvme0+"/1: .*"+missing, refused(t, "mount", "LABEL=lab array", t.TempDir()))
		for _, a := range addrs {
			if a != nvme0 {
				bound(t, a)
			}
		}
		require.Regexp(t, missing, refused(t, "mount", nvme0, t.TempDir()))
		require.Contains(t, refused(t, "mount", nvme0+","+many+"/2", t.TempDir()), "has no md metadata")
		// In any order, each with its lanes.
		dir := mount(t, many+"/1,"+strings.Join(addrs[:len(addrs)-1], ","))
		require.Equal(t, before, tree(t, dir), "LaneFS reads what the kernel wrote")
		stat := lanefs(t, "stat", dir)
		require.Contains(t, stat, fmt.Sprintf("md %s of %d", level, len(addrs)))
		require.Contains(t, stat, "LANEFS-0")
		require.Contains(t, stat, "LANEFS-MANY")
		lanefs(t, "umount", dir)
		dir = mount(t, "LABEL=lab array")
		fill(t, dir, 2)
		must(t, "cp", "-a", filepath.Join(dir, "d1-0"), filepath.Join(dir, "copied"))
		require.NoError(t, dd("/dev/urandom", filepath.Join(dir, "dd"), "bs=64k", "count=64"))
		var gaps []string
		for i, mib := range []int{110, 500} { // behind the end of the smallest member, too, and on each of the others
			gap := filepath.Join(dir, fmt.Sprint("gap", i))
			must(t, "fallocate", "-l", fmt.Sprint(mib<<20), gap)
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("behind ", i)), pattern(3<<20, byte(i)), 0o600))
			gaps = append(gaps, gap)
		}
		for _, gap := range gaps {
			require.NoError(t, os.Remove(gap))
		}
		after = tree(t, dir)
		lanefs(t, "umount", dir)
		if !allTags {
			return
		}
		dir = mount(t, "UUID="+strings.ToUpper(uuid))
		require.Equal(t, after, tree(t, dir))
		lanefs(t, "umount", dir)
		file := filepath.Join(t.TempDir(), "raw")
		lanefs(t, "raw", "-r", "/dev/disk/by-id/md-name-lab:fast", file)
		st, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, size, fmt.Sprint(st.Size()))
		lanefs(t, "umount", file)
	})
	if t.Failed() {
		return
	}
	must(t, "mdadm", append([]string{"--assemble", md9, "--run"}, disks()...)...)
	fsck(t, md9)
	kernelMount(t, md9, func(dir string) {
		require.Equal(t, after, tree(t, dir), "the kernel reads what LaneFS wrote")
	})
	fsck(t, md9)
}

// TestTagOfFunction: a volume on a function that no driver of the kernel's has is found by its label and UUID, by the names that kernel and udev had for
// the namespace, and by udev's link of before.
func TestTagOfFunction(t *testing.T) {
	dev := disk(t, nvme0)
	const uuid = "0f0e0d0c-0b0a-4908-8706-050403020100"
	mkfs(t, dev, "-L", "lab volume", "-U", uuid)
	wwid, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dev), "wwid"))
	require.NoError(t, err)
	bound(t, nvme0)
	for _, name := range []string{"ID=nvme-" + strings.TrimSpace(string(wwid)), "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_LANEFS-0_1", "LABEL=lab volume", "UUID=" + strings.ToUpper(uuid), "/dev/disk/by-uuid/" + uuid, "/dev/disk/by-path/pci-" + nvme0 + "-nvme-1"} {
		dir := mount(t, name)
		require.Contains(t, lanefs(t, "stat", dir), "serial LANEFS-0", name)
		lanefs(t, "umount", dir)
	}
	require.Contains(t, refused(t, "mount", "LABEL=other", t.TempDir()), "no device has LABEL=other")
	dir := mount(t, nvme0)
	require.Contains(t, refused(t, "mount", "LABEL=lab volume", t.TempDir()), nvme0+" could not be asked: it is mounted at \""+dir+"\"")
	lanefs(t, "umount", dir)
}
