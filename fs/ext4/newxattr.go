package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// makeCredits is what making a file takes.
func makeCredits(m *making) int {
	if len(m.xattrs) == 0 {
		return createCredits
	}
	n := createCredits + xattrCredits
	for _, a := range m.xattrs {
		n += len(a.Value)/1024*creditsPerExtent + createCredits // if the value gets an inode
	}
	return n
}

// putNewXattrs stores attributes of n, an inode that nobody else has.
func (i *Inode) putNewXattrs(o *op, attrs Xattrs) error {
	if len(attrs) == 0 {
		return nil
	}
	s, err := i.parseXattrs()
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
		if err := i.putXattr(s, xattr.Attr{Index: index, Name: rest, Value: value}, xattr.Always); err != nil {
			return err
		}
	}
	return i.writeXattrs(o, s)
}

// encodeXattr is a value as it lies on the volume.
func encodeXattr(index uint8, value []byte) ([]byte, error) {
	if !isACL(index) {
		return value, nil
	}
	a, err := xattr.ParseACL(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a.Encode(), nil
}
