package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

// Devices by what is on them, as mount(8) takes them: LABEL=, UUID=, PARTLABEL=, PARTUUID=, and ID= by what they are. udev's links say which device that is. Where
// there is none, the partition tables and ext4 superblocks of all block devices are read.

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

// link is the block device that udev's link of a tag leads to.
func (m machine) link(name, value string) (where, error) {
	to, err := filepath.EvalSymlinks(m.path("dev/disk", tagLinks[name], encodeTag(plainTag(name, value))))
	return where{Device: m.named(to)}, err
}

// plainTag is a tag's value as it is compared.
func plainTag(name, value string) string {
	if strings.HasSuffix(name, "UUID") {
		return strings.ToLower(value)
	}
	return value
}

// find is the block device that a tag names, or a partition of one. The error is *several if two have it.
func (m machine) find(name, value string) (where, error) {
	if value == "" {
		return where{}, fmt.Errorf("%s= names no device: nothing follows it; blkid lists those there are", name)
	}
	w, err := m.link(name, value)
	if err == nil {
		return w, nil
	}
	if name == "ID" { // udev makes those names
		return where{}, fmt.Errorf("no device has %s=%s: %w; ls %s lists those there are", name, value, reason(err), m.path("dev/disk", tagLinks[name]))
	}
	all, denied, err := m.scan()
	if err != nil {
		return where{}, fmt.Errorf("%s=%s: %w", name, value, err)
	}
	w, ok, err := choose(all, name, value)
	switch {
	case err != nil || ok:
		return w, err
	case len(denied) > 0:
		return where{}, fmt.Errorf("no device that could be read has %s=%s: %w; blkid, as root, lists those there are", name, value, severally(denied))
	}
	return where{}, fmt.Errorf("no device has %s=%s; blkid lists those there are", name, value)
}

// tagsAsked are devices that are not the one that is looked for, but one: a drive that spins up has the time.
var tagsAsked = asker[[]tagged]{limit: 20 * time.Second}

// scan reads the partition tables and superblocks of all block devices, as libblkid does where udev has no link. denied says which may not be read, or do not answer.
func (m machine) scan() (all []tagged, denied []error, err error) {
	names, err := m.blockDevices()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		there, err := tagsAsked.ask(m.node(name), func() ([]tagged, error) { return m.tagsOfBlock(name) })
		if errors.Is(err, os.ErrPermission) {
			denied = append(denied, err)
		} else if errors.Is(err, errNoAnswer) || errors.Is(err, errSuspended) {
			denied = append(denied, fmt.Errorf("%s: %w", m.node(name), err))
		} // else no medium, or none that can be read
		all = append(all, there...)
	}
	return all, denied, nil
}

const saidSeverally = 8

// severally is several errors in one line, the first few of them.
func severally(all []error) error {
	var said []string
	for _, err := range all[:min(len(all), saidSeverally)] {
		said = append(said, oneLine(err))
	}
	if more := len(all) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(said, "; "))
}

var errSuspended = errors.New("the device mapper has suspended it")

// tagsOfBlock reads what a block device has. One that another device is made of (md, LVM, multipath) is not asked: a half of a mirror looks like the volume.
func (m machine) tagsOfBlock(name string) ([]tagged, error) {
	switch {
	case m.held(name):
		return nil, nil
	case m.suspended(name): // a read would wait
		return nil, errSuspended
	}
	d, err := m.openBlock(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	w := where{Device: m.named(m.node(name))}
	if m.isPartition(name) { // its disk has its PARTUUID
		part, _ := tagsOfVolume(d)
		part.where = w
		return []tagged{part}, nil
	}
	all := tagsOn(d, w)
	shown := m.partitions(name)
	for i := range all {
		p, ok := shown[all[i].Part]
		if !ok {
			continue
		}
		all[i].where, all[i].why = where{Device: m.node(p.name)}, "" // the kernel keeps to its own rules
		for _, ofVolume := range []string{"LABEL", "UUID"} {
			delete(all[i].tags, ofVolume) // which the kernel's partition itself is asked for
		}
		if p.first != all[i].first { // the kernel has another table than the disk by now
			all[i].tags = nil
		}
	}
	return all, nil
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
