package attrs

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// MakeCredits is what making a file takes.
func MakeCredits(m *volume.Making) int {
	if len(m.Xattrs) == 0 {
		return CreateCredits
	}
	n := CreateCredits + xattrCredits
	for _, a := range m.Xattrs {
		n += len(a.Value)/1024*contents.CreditsPerExtent + CreateCredits // if the value gets an inode
	}
	return n
}

// PutNewXattrs stores attributes of an inode that no other operation has seen yet.
func PutNewXattrs(i *volume.Inode, o *volume.Op, attrs volume.Xattrs) error {
	if len(attrs) == 0 {
		return nil
	}
	s, err := i.ParseXattrs()
	if err != nil {
		return err
	}
	for _, a := range attrs {
		index, rest, ok := xattr.Split(a.Name)
		if !ok {
			return badXattrName(a.Name)
		}
		value, err := encodeXattr(index, a.Value)
		if err != nil {
			return err
		}
		if isACL(index) && value == nil {
			continue
		}
		if err := putXattr(i, s, xattr.Attr{Index: index, Name: rest, Value: value}, xattr.Always); err != nil {
			return err
		}
	}
	return writeXattrs(i, o, s)
}

// encodeXattr is a value as it lies on the volume; nil is an ACL without entries, which means that there is none.
func encodeXattr(index uint8, value []byte) ([]byte, error) {
	if !isACL(index) {
		return value, nil
	}
	a, err := xattr.ParseACL(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	if a == nil {
		return nil, nil
	}
	return a.Encode(), nil
}
