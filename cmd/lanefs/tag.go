package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Devices by what is on them, as mount(8) takes them: LABEL=, UUID=, PARTLABEL=, PARTUUID=, and ID= by what they are. udev's links say which device that is. Without
// udev the superblocks of all block devices are read, for labels and UUIDs of ext4 volumes.

// machine is where /dev and /sys are; the zero value is this machine.
type machine struct{ root string }

func (m machine) path(parts ...string) string {
	return filepath.Join(append([]string{"/", m.root}, parts...)...)
}

// tagLinks is where udev has links of a tag.
var tagLinks = map[string]string{"LABEL": "by-label", "UUID": "by-uuid", "PARTLABEL": "by-partlabel", "PARTUUID": "by-partuuid", "ID": "by-id"}

// parseTag splits NAME=VALUE, where VALUE may be quoted; false for what is no tag.
func parseTag(device string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(device, "=")
	if !ok || tagLinks[name] == "" {
		return "", "", false
	}
	if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	return name, value, true
}

// find is the block device that a tag names.
func (m machine) find(name, value string) (string, error) {
	if value == "" {
		return "", fmt.Errorf("%s= names no device: nothing follows it; blkid lists those there are", name)
	}
	if strings.HasSuffix(name, "UUID") {
		value = strings.ToLower(value)
	}
	links := m.path("dev/disk", tagLinks[name])
	to, err := filepath.EvalSymlinks(filepath.Join(links, encodeTag(value)))
	if err == nil {
		return to, nil
	}
	if _, udev := os.Stat(m.path("dev/disk")); udev == nil {
		return "", fmt.Errorf("no device has %s=%s: %w; blkid lists those there are", name, value, reason(err))
	}
	if name != "LABEL" && name != "UUID" {
		return "", fmt.Errorf("%s=%s: without udev (%s) there are no such names; name it /dev/…, as lsblk does", name, value, links)
	}
	return m.scan(name, value)
}

// scan reads the superblocks of all block devices. One that another device is made of (md, LVM, a partitioned disk's holders) is not asked:
// a half of a mirror looks like the volume.
func (m machine) scan(name, value string) (string, error) {
	list, err := os.ReadDir(m.path("sys/class/block"))
	if err != nil {
		return "", fmt.Errorf("%s=%s: %w", name, value, err)
	}
	var found []string
	var denied error
	for _, e := range list {
		if holders, _ := os.ReadDir(m.path("sys/class/block", e.Name(), "holders")); len(holders) > 0 {
			continue
		}
		node := m.path("dev", strings.ReplaceAll(e.Name(), "!", "/")) // sysfs has no slash in names
		s, err := superblockOf(node)
		switch {
		case errors.Is(err, os.ErrPermission):
			denied = err
		case err != nil: // no medium, or no ext4 on it
		case name == "LABEL" && s.Label() == value, name == "UUID" && fmt.Sprintf("%x", s.UUID) == strings.ReplaceAll(value, "-", ""):
			found = append(found, node)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) > 1:
		return "", fmt.Errorf("%s=%s is on %s: say which by its name", name, value, strings.Join(found, " and "))
	case len(found) == 1:
		return found[0], nil
	case denied != nil:
		return "", fmt.Errorf("no device that could be read has %s=%s: %w; blkid, as root, lists those there are", name, value, denied)
	}
	return "", fmt.Errorf("no device has %s=%s; blkid lists those there are", name, value)
}

func superblockOf(node string) (*disk.Superblock, error) {
	f, err := os.Open(node)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, disk.SuperblockSize)
	if _, err := f.ReadAt(b, disk.SuperblockOffset); err != nil {
		return nil, err
	}
	return disk.DecodeSuperblock(b)
}

// encodeTag spells a value as udev does in names of links: what is neither a letter, a digit, one of #+-.:=@_ nor part of a rune beyond
// ASCII is \xNN.
func encodeTag(value string) string {
	var b strings.Builder
	for i := 0; i < len(value); {
		r, n := utf8.DecodeRuneInString(value[i:])
		plain := n > 1 || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r < utf8.RuneSelf && strings.ContainsRune("#+-.:=@_", r)
		if plain {
			b.WriteString(value[i : i+n])
		} else {
			fmt.Fprintf(&b, `\x%02x`, value[i])
			n = 1
		}
		i += n
	}
	return b.String()
}
