package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// A tag that no block device has may be of a PCI function that is bound to user space, where the kernel and udev do not see it: each that
// nobody has is brought up and asked for its namespaces, their partition tables and superblocks, and so are the arrays of what they have (tagarray.go).
// Only reads are sent.

// tagged is a place with its tags; empty: it has none.
type tagged struct {
	where
	tags  map[string]string // by LABEL, UUID, PARTLABEL, PARTUUID
	ids   []string          // its names for ID
	first blockdev.Bytes    // of a partition: where it begins
	why   string            // a partition that cannot be used; empty: it can

	member *md.Superblock // what it says as the member of an array; nil: it is none
}

// findTag is the device that a tag names: a block device, or what is on a bound function.
func findTag(name, value string) (where, error) {
	w, err := machine{}.find(name, value)
	var many *several
	if err == nil || value == "" || errors.As(err, &many) {
		return w, err
	}
	var all []tagged
	functions, _ := pci.System{}.Functions()
	running := daemons()
	for _, f := range functions {
		if !f.NVMe() || f.Driver != pci.VFIO {
			continue
		}
		there, why := tagsOf(string(f.Addr))
		if who := user(string(f.Addr), running); why != nil && who != "" {
			why = errors.New(who)
		}
		if all = append(all, there...); why != nil {
			err = fmt.Errorf("%w; %s could not be asked: %s", err, f.Addr, oneLine(why))
		}
	}
	arrays, whys := arraysOf(all)
	for _, why := range whys {
		err = fmt.Errorf("%w; %s", err, oneLine(why))
	}
	w, ok, both := choose(append(all, arrays...), name, value)
	switch {
	case both != nil:
		return w, both
	case ok:
		return w, nil
	}
	return w, err
}

// several is the error of a tag that two have.
type several struct {
	tag      string
	one, two where
}

func (e *several) Error() string {
	return fmt.Sprintf("%s is on %v and %v: say which by its name", e.tag, e.one, e.two)
}

// choose is the one of all that a tag names; *several if there are two. A partition that cannot be used is an error if there is no other.
func choose(all []tagged, name, value string) (found where, ok bool, err error) {
	value = plainTag(name, value)
	var refused error
	for _, t := range all {
		if name == "ID" {
			if !slices.ContainsFunc(t.ids, func(id string) bool { return sameID(id, value) }) {
				continue
			}
		} else if have, has := t.tags[name]; !has || have != value {
			continue
		}
		if t.why != "" {
			refused = cmp.Or(refused, fmt.Errorf("%s=%s is %v, which cannot be used: %s", name, value, t.where, t.why))
			continue
		}
		if ok {
			return where{}, false, &several{name + "=" + value, found, t.where}
		}
		found, ok = t.where, true
	}
	if !ok {
		err = refused
	}
	return found, ok, err
}

// tagsOf asks a device, a function or an image, for the tags of its namespaces and their partitions.
func tagsOf(device string) (all []tagged, err error) {
	cfg := askOnly()
	cfg.Device = device
	var u unit
	defer func() {
		if u.dev != nil {
			err = errors.Join(err, u.dev.Close())
		}
		if u.eng != nil {
			err = errors.Join(err, u.eng.Close())
		}
		err = errors.Join(err, u.drive.Close())
	}()
	if err = u.open(&cfg, nil, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	for _, ns := range u.nvme.Namespaces() {
		if ns.Unusable != nil {
			continue
		}
		if u.dev, err = namespace.Open(u.eng, ns.ID, namespace.Options{}); err != nil {
			return all, err
		}
		w := where{Device: device, NSID: ns.ID}
		if !isFunction(device) {
			w.NSID = 0
		}
		all = append(all, named(tagsOn(u.dev, w), w, namesByID(u.nvme.Identify(), ns))...)
		if err := u.dev.Close(); err != nil {
			return all, err
		}
		u.dev = nil
	}
	return all, nil
}

// named gives a namespace, which is w, and its partitions the names by ID.
func named(all []tagged, w where, ids []string) []tagged {
	if len(all) == 0 || all[0].where != w {
		all = append([]tagged{{where: w}}, all...)
	}
	for i := range all {
		for _, id := range ids {
			if p := all[i].Part; p > 0 {
				id = fmt.Sprintf("%s-part%d", id, p)
			}
			all[i].ids = append(all[i].ids, id)
		}
	}
	return all
}

// tagsOn are the tags of what is on a disk: a volume, partitions with volumes, or, where a volume was before the disk had partitions, both. The member of an
// array has no partitions: what looks like them is the array's.
func tagsOn(d blockdev.Device, w where) (all []tagged) {
	whole, ofArray := tagsOfVolume(d)
	if whole.where = w; whole.member != nil || len(whole.tags) > 0 {
		all = append(all, whole)
	}
	t, err := partition.Read(d)
	if err != nil || ofArray {
		return all
	}
	for _, p := range t.Parts {
		part, _ := tagsOfVolume(partition.Open(d, p))
		all = append(all, part.as(p, w, d))
	}
	for _, p := range t.Refused {
		part := tagged{tags: map[string]string{}, why: p.Why}
		all = append(all, part.as(p.Part, w, d))
	}
	return all
}

// as is a tagged volume as a partition of w, which is a disk.
func (t tagged) as(p partition.Part, w where, disk blockdev.Device) tagged {
	w.Part = p.Number
	if t.where, t.first = w, blockdev.Bytes(p.First)*disk.Info().BlockSize; p.ID != "" {
		t.tags["PARTUUID"] = p.ID
	}
	if p.Name != "" {
		t.tags["PARTLABEL"] = p.Name
	}
	return t
}

// tagsOfVolume are the tags of a volume, or what a member says of its array. It has no tags of its own: a half of a mirror looks like the volume.
func tagsOfVolume(d blockdev.Device) (t tagged, ofArray bool) {
	s, err := member(d)
	var foreign *md.Foreign
	if s != nil || errors.As(err, &foreign) {
		return tagged{member: s, tags: map[string]string{}}, true
	}
	return tagged{tags: volumeTags(d)}, false
}

// volumeTags are the tags of an ext4 volume.
func volumeTags(d blockdev.Device) map[string]string {
	tags := map[string]string{}
	s := volumeOn(d)
	if s == nil {
		return tags
	}
	tags["UUID"] = uuidText(s.UUID)
	if l := s.Label(); l != "" {
		tags["LABEL"] = l
	}
	return tags
}

var byPath = regexp.MustCompile(`^pci-(` + pciAddress.String()[1:len(pciAddress.String())-1] + `)-nvme-([1-9][0-9]{0,9})(-part[1-9][0-9]{0,3})?$`)

// unlink takes one of udev's links of a function that the kernel does not have any more for what it said: by-label, by-id and the like for a tag,
// by-path for an address. Other names stay as they are.
func unlink(arg string) string {
	dir, name := filepath.Split(arg)
	for tag, links := range tagLinks {
		if dir == "/dev/disk/"+links+"/" {
			return tag + "=" + decodeTag(name)
		}
	}
	if m := byPath.FindStringSubmatch(name); m != nil && dir == "/dev/disk/by-path/" {
		return m[1] + "/" + m[3] + m[4]
	}
	return arg
}

// decodeTag undoes encodeTag.
func decodeTag(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if n, err := strconv.ParseUint(name[min(i+2, len(name)):min(i+4, len(name))], 16, 8); err == nil && strings.HasPrefix(name[i:], `\x`) && i+4 <= len(name) {
			b.WriteByte(byte(n))
			i += 3
			continue
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// uuidText is a UUID as people write it.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
