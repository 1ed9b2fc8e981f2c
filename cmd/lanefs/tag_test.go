package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
		tool(t, "mkfs.ext4", "-q", "-F", "-L", tagLabel, "-U", tagUUID, node)
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
		require.Equal(t, m.path("dev/sdb1"), got, "sda is a half of md0")
	}
	_, err := m.find("LABEL", "my disk")
	require.ErrorContains(t, err, "no device has LABEL=my disk")
	_, err = m.find("LABEL", "")
	require.ErrorContains(t, err, "LABEL= names no device")
	_, err = m.find("PARTUUID", "1-1")
	require.ErrorContains(t, err, "without udev")
	require.NoError(t, os.Remove(m.path("sys/class/block/sda/holders/md0")))
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, fmt.Sprintf("is on %s and %s", m.path("dev/sda"), m.path("dev/sdb1")))

	// With udev its link counts, and nothing else.
	for dir, name := range map[string]string{"by-label": `my\x20disk\x2f1`, "by-partuuid": "1-1"} {
		require.NoError(t, os.MkdirAll(m.path("dev/disk", dir), 0o755))
		require.NoError(t, os.Symlink("../../sda", filepath.Join(m.path("dev/disk", dir), name)))
	}
	for _, tag := range [][2]string{{"LABEL", tagLabel}, {"PARTUUID", "1-1"}} {
		got, err := m.find(tag[0], tag[1])
		require.NoError(t, err)
		require.Equal(t, m.path("dev/sda"), got)
	}
	_, err = m.find("UUID", tagUUID)
	require.ErrorContains(t, err, "no device has UUID="+tagUUID)

	_, err = resolveDevice("UUID=00000000-0000-0000-0000-000000000000")
	require.ErrorContains(t, err, "UUID=00000000-0000-0000-0000-000000000000")
}
