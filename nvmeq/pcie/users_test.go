package pcie

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

const addr = "0000:01:00.0"

// machine is a System with one function, and files in its /sys and /proc.
func machine(t *testing.T, files map[string]string) *pci.Function {
	root := t.TempDir()
	dir := "sys/bus/pci/devices/" + addr + "/"
	all := map[string]string{dir + "class": "0x010802", dir + "vendor": "0x1b36", dir + "device": "0x0010"}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	f, err := pci.System{Root: root}.Function(addr)
	require.NoError(t, err)
	return f
}

// A namespace has one disk, however many paths the kernel shows; the uses of a disk and of its partitions are the function's.
func TestUsers(t *testing.T) {
	nvme := "sys/bus/pci/devices/" + addr + "/nvme/nvme3/"
	f := machine(t, map[string]string{
		nvme + "dev":                                  "240:3",
		nvme + "nvme3n1/dev":                          "259:0",
		nvme + "nvme3c1n1/dev":                        "259:9",
		nvme + "nvme3c3n2/dev":                        "259:8",
		nvme + "hwmon1/name":                          "nvme",
		"sys/class/block/nvme3n1/dev":                 "259:0",
		"sys/class/block/nvme3n1/nvme3n1p1/dev":       "259:1",
		"sys/class/block/nvme3n1/nvme3n1p1/partition": "1",
		"sys/class/block/nvme3n1/queue/depth":         "64",
		"sys/class/block/nvme3n2/dev":                 "259:4",
		"sys/class/block/nvme3n2/holders/md7/dev":     "9:7",
		"sys/class/block/md7/md/level":                "raid1",
		"sys/class/nvme-generic/ng3n1/dev":            "241:0",
		"proc/swaps":                                  "Filename Type Size Used Priority\n/dev/nvme3n1 partition 8 0 -2",
		"proc/77/mountinfo":                           "40 1 259:1 / /data rw - ext4 /dev/nvme3n1p1 rw",
	})
	require.Equal(t, []string{"nvme3n1", "nvme3n2"}, Disks(f))
	require.Equal(t, []pci.Node{{Name: "nvme3n1", Dev: "259:0", Block: true}, {Name: "nvme3n1p1", Dev: "259:1", Block: true},
		{Name: "nvme3n2", Dev: "259:4", Block: true}}, blocks(f))
	require.Equal(t, []pci.Node{{Name: "nvme3", Dev: "240:3"}, {Name: "ng3n1", Dev: "241:0"}}, characters(f))
	users, err := Users(f)
	require.NoError(t, err)
	require.Equal(t, []pci.User{{Device: "nvme3n2", How: "is part of the RAID array md7"}, {Device: "nvme3n1p1", How: "is mounted at /data"},
		{Device: "nvme3n1", How: "is swap space"}}, users)
	release, err := Claim(f) // no disk has a node in this machine's /dev
	require.NoError(t, err)
	release()
}

// A function with another driver has no disks, and no users.
func TestNoDisks(t *testing.T) {
	f := machine(t, nil)
	require.Empty(t, Disks(f))
	users, err := Users(f)
	require.NoError(t, err)
	require.Empty(t, users)
}
