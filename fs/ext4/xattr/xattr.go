// Package xattr holds the two places where ext4 keeps extended attributes: the rest of an inode's slot behind its
// members (the body), and one block per file (the block). It performs no I/O.
//
// The nouns: an Attr is one attribute, its name without the prefix that its Index stands for. A Set is all attributes
// of a file, by place; it decides what goes where. A Format is how a volume stores them.
//
// Reading one attribute: Format.FindBody, then Format.FindBlock. Changing: Format.Parse, Set.Put or Set.Delete, then
// Format.EncodeBody and Format.EncodeBlock. Values that a file of their own holds (ea_inode) are named by its inode
// number, and their contents are for the caller to read.
//
// Nothing on disk is trusted: what cannot be is a *disk.CorruptError.
//
// Source: Linux, Documentation/filesystems/ext4/, Extended Attributes [layout].
package xattr

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

var le = binary.LittleEndian

// Errors that callers tell apart.
var (
	ErrNotExist = errors.New("no such attribute")
	ErrExist    = errors.New("attribute exists")
	ErrNoSpace  = errors.New("attributes do not fit the inode and one block")
)

// MaxName is the longest name in bytes, without its prefix.
const MaxName = 255

// Name indexes ([layout] Extended Attributes): what a name's prefix is on disk.
const (
	IndexUser            = 1
	IndexPosixACLAccess  = 2
	IndexPosixACLDefault = 3
	IndexTrusted         = 4
	IndexLustre          = 5
	IndexSecurity        = 6
	IndexSystem          = 7 // inline data
	IndexRichACL         = 8
	IndexEncryption      = 9
	IndexHurd            = 10
)

// prefixes are what indexes stand for. whole ones are a name by themselves. The others, rich access control lists, lustre's, the
// encryption context and inline data, are not shown, as with the kernel.
var prefixes = []struct {
	index  uint8
	prefix string
	whole  bool
}{
	{IndexUser, "user.", false},
	{IndexPosixACLAccess, "system.posix_acl_access", true},
	{IndexPosixACLDefault, "system.posix_acl_default", true},
	{IndexTrusted, "trusted.", false},
	{IndexSecurity, "security.", false},
	{IndexHurd, "gnu.", false},
}

// Split takes a name apart into index and rest. It reports false for names that ext4 has no place for.
func Split(name string) (index uint8, rest string, ok bool) {
	for _, p := range prefixes {
		if r, found := strings.CutPrefix(name, p.prefix); found && (r == "") == p.whole {
			return p.index, r, len(r) <= MaxName
		}
	}
	return 0, "", false
}

// Attr is one attribute.
type Attr struct {
	Index uint8
	Name  string
	Value []byte // part of where it was read from; nil if ValueInum is set
	// ValueInum is the inode that holds the value, 0 if Value does. ValueSize is its length, Hash what the entry says.
	ValueInum uint32
	ValueSize uint32
	Hash      uint32
	// Moves says that Value is still to be put into an inode of its own: the caller makes one each time that it writes the set,
	// and sets ValueInum.
	Moves bool
}

// Moved is the attribute with its value in an inode of its own, whose checksum over the value is sum.
func (a Attr) Moved(sum uint32) Attr {
	a.ValueInum, a.ValueSize, a.Moves = noInode, uint32(len(a.Value)), true
	a.Hash = entryHash(a.Name, le.AppendUint32(nil, sum))
	return a
}

// noInode stands in ValueInum until there is an inode.
const noInode = ^uint32(0)

// FullName is the name with its prefix, "" if the attribute is not to be shown.
func (a *Attr) FullName() string {
	for _, p := range prefixes {
		if p.index == a.Index {
			return p.prefix + a.Name
		}
	}
	return ""
}

// Size is the length of the value.
func (a *Attr) Size() int {
	if a.ValueInum != 0 {
		return int(a.ValueSize)
	}
	return len(a.Value)
}

// Format is how a volume stores attributes. It does not change.
type Format struct {
	blockSize int
	seed      uint32
	csum      bool
	eaInode   bool
	inodes    uint32
}

// New describes a volume.
func New(s *disk.Superblock) *Format {
	return &Format{
		blockSize: s.BlockSize(),
		seed:      s.CsumSeed(),
		csum:      s.MetadataCsum(),
		eaInode:   s.FeatureIncompat.Has(disk.IncompatEAInode),
		inodes:    s.InodesCount,
	}
}
