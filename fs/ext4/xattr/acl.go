package xattr

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// POSIX ACLs. On disk ext4 has a form of its own: a version, then entries of tag and permissions, with an id only where
// the tag takes one. Programs see the form of acl(5)'s extended attribute: a version, then tag, permissions, id.
const (
	aclDiskVersion  = 1
	aclXattrVersion = 2
	aclNoID         = 0xFFFFFFFF
)

// Tags of ACL entries.
const (
	TagUserObj  = 0x01
	TagUser     = 0x02
	TagGroupObj = 0x04
	TagGroup    = 0x08
	TagMask     = 0x10
	TagOther    = 0x20
)

// ACLEntry is one entry of an ACL.
type ACLEntry struct {
	Tag  uint16
	Perm uint16 // rwx
	ID   uint32 // for TagUser and TagGroup
}

func (e ACLEntry) named() bool { return e.Tag == TagUser || e.Tag == TagGroup }

// ACL is an access control list, in the order user object, users, group object, groups, mask, others.
type ACL []ACLEntry

// DecodeACL decodes the on-disk form, the value of an attribute with an ACL's index. An empty list is nil, which means no ACL: the kernel reads it so.
func DecodeACL(b []byte) (ACL, error) {
	if len(b) < 4 || le.Uint32(b) != aclDiskVersion {
		return nil, disk.Corrupt("ACL", "not version %d of the on-disk form", aclDiskVersion)
	}
	var out ACL
	for b = b[4:]; len(b) > 0; {
		if len(b) < 4 {
			return nil, disk.Corrupt("ACL", "%d bytes behind the last entry", len(b))
		}
		e := ACLEntry{Tag: le.Uint16(b), Perm: le.Uint16(b[2:])}
		b = b[4:]
		if e.named() {
			if len(b) < 4 {
				return nil, disk.Corrupt("ACL", "an entry without its id")
			}
			e.ID = le.Uint32(b)
			b = b[4:]
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, nil
	}
	if why := out.check(); why != "" {
		return nil, disk.Corrupt("ACL", "%s", why)
	}
	return out, nil
}

// Encode is the on-disk form.
func (a ACL) Encode() []byte {
	out := le.AppendUint32(nil, aclDiskVersion)
	for _, e := range a {
		out = le.AppendUint16(out, e.Tag)
		out = le.AppendUint16(out, e.Perm)
		if e.named() {
			out = le.AppendUint32(out, e.ID)
		}
	}
	return out
}

// ParseACL decodes the form that programs give to setxattr(2). An empty list is nil: it means no ACL.
func ParseACL(b []byte) (ACL, error) {
	if len(b) < 4 || le.Uint32(b) != aclXattrVersion || len(b)%8 != 4 {
		return nil, fmt.Errorf("ACL of %d bytes is not in version %d of its form", len(b), aclXattrVersion)
	}
	var out ACL
	for b = b[4:]; len(b) > 0; b = b[8:] {
		e := ACLEntry{Tag: le.Uint16(b), Perm: le.Uint16(b[2:])}
		if e.named() {
			e.ID = le.Uint32(b[4:])
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, nil
	}
	if why := out.check(); why != "" {
		return nil, fmt.Errorf("ACL cannot be: %s", why)
	}
	return out, nil
}

// Xattr is the form that programs get from getxattr(2).
func (a ACL) Xattr() []byte {
	out := le.AppendUint32(nil, aclXattrVersion)
	for _, e := range a {
		id := uint32(aclNoID)
		if e.named() {
			id = e.ID
		}
		out = le.AppendUint16(out, e.Tag)
		out = le.AppendUint16(out, e.Perm)
		out = le.AppendUint32(out, id)
	}
	return out
}

// check says what is wrong with the list: tags in order, the three base entries once each, a mask if there are names.
func (a ACL) check() string {
	var last, have uint16
	for i, e := range a {
		switch {
		case e.Perm > 7:
			return fmt.Sprintf("permissions %#o", e.Perm)
		case e.Tag == 0 || e.Tag&(e.Tag-1) != 0 || e.Tag > TagOther:
			return fmt.Sprintf("tag %#x", e.Tag)
		case i > 0 && e.Tag < last:
			return "entries out of order"
		case i > 0 && e.Tag == last && !e.named():
			return "an entry twice"
		case e.named() && e.ID == aclNoID:
			return "a name without an id"
		}
		have |= e.Tag
		last = e.Tag
	}
	const base = TagUserObj | TagGroupObj | TagOther
	if have&base != base {
		return "user, group or other is missing"
	}
	if have&(TagUser|TagGroup) != 0 && have&TagMask == 0 {
		return "names but no mask"
	}
	return ""
}

// perm is the place of the entry that the given tag has, nil if there is none.
func (a ACL) perm(tag uint16) *uint16 {
	for i := range a {
		if a[i].Tag == tag {
			return &a[i].Perm
		}
	}
	return nil
}

// groupClass is the entry that the group bits of a mode show: the mask, or the group object if there is none.
func (a ACL) groupClass() *uint16 {
	if p := a.perm(TagMask); p != nil {
		return p
	}
	return a.perm(TagGroupObj)
}

// Mode gives the permission bits that the list means, and whether they say all that it says.
func (a ACL) Mode() (bits uint16, all bool) {
	return *a.perm(TagUserObj)<<6 | *a.groupClass()<<3 | *a.perm(TagOther), len(a) == 3
}

// Chmod is the list after chmod(2).
func (a ACL) Chmod(mode uint16) ACL {
	out := append(ACL(nil), a...)
	*out.perm(TagUserObj) = mode >> 6 & 7
	*out.groupClass() = mode >> 3 & 7
	*out.perm(TagOther) = mode & 7
	return out
}

// Inherit is the access list and the permission bits of a file created with mode in a directory whose default list is
// a. The list is nil if the bits say it all.
func (a ACL) Inherit(mode uint16) (ACL, uint16) {
	have, _ := a.Mode()
	mode = mode&^0o777 | mode&have
	out := a.Chmod(mode)
	if _, all := out.Mode(); all {
		return nil, mode
	}
	return out, mode
}
